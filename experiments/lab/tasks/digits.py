"""Handwritten digits: small models on the 1,797 images of 8 x 8 pixels that scikit-learn ships.

Nothing is downloaded. A third of the images, drawn once with a fixed seed, is held back for
validation, so that half a point of accuracy is three images and not one.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lab.records import Quality
from lab.tasks.task import Batch, EpochOrder, Metric, seeded, warmup_then_cosine

WIDTHS = (64, 1024, 1024, 1024, 1024, 1024, 10)
_SPLIT_SEED = 20_240


@cache
def split_indices(examples: int) -> tuple[Tensor, Tensor]:
    """(train, validation) index tensors; disjoint, together all of ``examples``."""
    order = np.random.Generator(np.random.Philox(key=_SPLIT_SEED)).permutation(examples)
    held_back = examples // 3
    return torch.from_numpy(order[held_back:]), torch.from_numpy(order[:held_back])


@cache
def images_and_labels() -> tuple[Tensor, Tensor]:
    """All images, float32 of shape (1797, 64) in [0, 1], and labels, int64 of shape (1797,)."""
    from sklearn.datasets import load_digits  # imported here: it takes a second on every rank

    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images).float() / 16.0, torch.from_numpy(labels).long()


class SmallCNN(nn.Module):
    """Two 3 x 3 convolutions, one pooling, two linear layers: 85,066 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, 10) from images of shape (batch, 64)."""
        maps: Tensor = self.features(images.view(-1, 1, 8, 8))
        logits: Tensor = self.classifier(maps.flatten(1))
        return logits


class Perceptron(nn.Module):
    """A 5-hidden-layer perceptron of 4.28 million parameters: a step that is all communication.

    64-1024-1024-1024-1024-1024-10, with ReLU between the layers. With one thread and batches of 32
    the step computes for tens of milliseconds and, in float32, sends 17 MB: the shape for which
    latency and bandwidth are everything. It is meant for timing cells; it trains too.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for wide_in, wide_out in pairwise(WIDTHS):
            layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, 10) from images of shape (batch, 64)."""
        logits: Tensor = self.layers(images)
        return logits


class Digits:
    """The digits as a :class:`~lab.tasks.task.Task`; subclass nothing, hand in a model class."""

    name = "digits"
    quality = Quality(
        quality_name="accuracy",
        quality_unit="fraction",
        larger_is_better=True,
        tolerance=0.01,
        tolerance_relative=False,
    )

    def __init__(
        self,
        model: type[nn.Module] = SmallCNN,
        name: str = "digits",
        batch: int = 16,
        learning_rate: float = 0.05,
    ) -> None:
        images, labels = images_and_labels()
        self.name = name
        self.train_indices, self.validation_indices = split_indices(len(images))
        self._model = model
        self._learning_rate = learning_rate
        self._train = images[self.train_indices], labels[self.train_indices]
        self._validation = images[self.validation_indices], labels[self.validation_indices]
        self._order = EpochOrder(len(self.train_indices), batch)

    def build_model(self, seed: int) -> nn.Module:
        """A fresh model with bits that depend on ``seed`` only."""
        return seeded(seed, self._model)

    def batch(self, rank: int, world: int, step: int, seed: int) -> Batch:
        """Images (batch, 64) and labels (batch,)."""
        chosen = self._order.indices(rank, world, step, seed)
        return self._train[0][chosen], self._train[1][chosen]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy."""
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, model: nn.Module, steps: int) -> tuple[Optimizer, LambdaLR]:
        """SGD with Nesterov momentum 0.9."""
        optimizer = SGD(
            model.parameters(), lr=self._learning_rate, momentum=0.9, nesterov=True, foreach=True
        )
        return optimizer, warmup_then_cosine(optimizer, steps, warmup=max(1, steps // 10))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> list[Metric]:
        """Accuracy as a fraction, and the loss, on the validation third."""
        images, labels = self._validation
        logits: Tensor = model(images)
        accuracy = (logits.argmax(1) == labels).double().mean().item()
        loss = self.loss(logits, labels).item()
        return [
            Metric(name="accuracy", value=accuracy, unit="fraction"),
            Metric(name="loss", value=loss, unit="nats per image"),
        ]
