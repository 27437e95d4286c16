"""Tiny models for tests on real ranks: a few thousand parameters, every kind of layer."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

CLASSES = 4


class TiedTransformer(nn.Module):
    """An embedding, one attention block, and an output layer that shares the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.output = nn.Linear(16, 32, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x[:, :6].abs() * 100).long() % 32
        logits: torch.Tensor = self.output(self.block(self.embedding(tokens)).mean(1))
        return logits[:, :CLASSES]


class Branches(nn.Module):
    """A branch that nobody uses, and one that only the chosen ranks use."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.trunk = nn.Linear(16, 24)
        self.never = nn.Linear(24, 24)
        self.sometimes = nn.Linear(24, 24)
        self.head = nn.Linear(24, CLASSES)
        self.use_sometimes = rank == 0
        self.use_never = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.trunk(x).relu()
        if self.use_sometimes:
            h = h + self.sometimes(h).relu()
        if self.use_never:
            h = h + self.never(h).relu()
        result: torch.Tensor = self.head(h)
        return result


class Scaled(nn.Module):
    """A parameter of one element, and one without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.gain = nn.Parameter(torch.ones(1))
        self.offset = nn.Parameter(torch.zeros(()))
        self.last = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.first(x).relu() * self.gain + self.offset)
        return result


class WithEmpty(nn.Module):
    """Parameters without elements: the first, one between others, and the last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(0))
        self.body = nn.Linear(16, 32)
        self.between = nn.Parameter(torch.zeros(3, 0))
        self.head = nn.Linear(32, CLASSES)
        self.last = nn.Parameter(torch.zeros(0, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing = self.first.sum() + self.between.sum() + self.last.sum()
        result: torch.Tensor = self.head(self.body(x).relu()) + nothing
        return result


class OnlyEmpty(nn.Module):
    """Its only parameter has no elements, and its loss is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        right = nn.functional.one_hot(x[:, :CLASSES].argmax(1), CLASSES)
        return 1e3 * right + self.weight.sum()


class EmptyBesideEach(nn.Module):
    """Many weights, and beside each a parameter without elements."""

    COUNT = 80

    def __init__(self) -> None:
        super().__init__()
        self.empty = nn.ParameterList(torch.zeros(0, 5) for _ in range(self.COUNT))
        self.weights = nn.ParameterList(torch.randn(16, CLASSES) for _ in range(self.COUNT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing = torch.stack([p.sum() for p in self.empty]).sum()
        return x @ torch.stack(list(self.weights)).sum(0) + nothing


class Complex(nn.Module):
    """A complex layer between real ones, as models of signals have; conjugated in its use."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        real = dtype.to_real()
        self.first = nn.Linear(16, 32, dtype=real)
        self.weight = nn.Parameter(0.2 * torch.randn(32, 24, dtype=dtype))
        self.phase = nn.Parameter(torch.randn((), dtype=dtype))
        self.last = nn.Linear(24, CLASSES, dtype=real)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x.real.to(self.first.weight.dtype)).to(self.weight.dtype)
        h = h @ self.weight.conj() * self.phase
        result: torch.Tensor = self.last(h.abs() + h.imag)
        return result


class Linear(nn.Module):
    """Its loss is linear in its parameters, so that a test chooses every gradient.

    `forward(factors)` returns the sum of factor * parameter; each gradient is its factor.
    """

    SHAPES = ((48, 40), (40,), (30, 70), (1,), (64, 16))

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in self.SHAPES)

    def forward(self, *factors: torch.Tensor) -> torch.Tensor:
        parts = [(f * w).sum() for f, w in zip(factors, self.weights, strict=True)]
        return torch.stack(parts).sum()


def named(*names: str) -> nn.Module:
    """A plain model whose layers have these names."""
    layers = (nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    return nn.Sequential(OrderedDict(zip((names[0], "relu", names[1]), layers, strict=True)))


def mlp() -> nn.Module:
    """About 9,000 parameters."""
    widths = (16, 64, 64, 48)
    pairs = itertools.pairwise(widths)
    layers = [m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


def wide() -> nn.Module:
    """Large enough that the transport's backend sums its units: over 2 MB."""
    return nn.Sequential(
        nn.Linear(16, 720), nn.ReLU(), nn.Linear(720, 720), nn.Linear(720, CLASSES)
    )


def cnn() -> nn.Module:
    """Convolutions over the input as a 4 x 4 picture."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    )


def normed_cnn() -> nn.Module:
    """With batch norms, whose buffers DDP broadcasts before each forward pass."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    )


def channels_last_cnn() -> nn.Module:
    """Its convolutions' gradients are not in row-major order."""
    return cnn().to(memory_format=torch.channels_last)


def frozen_mlp() -> nn.Module:
    """Its first layer is not trained."""
    model = mlp()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model


def scaled_in_8_bits() -> nn.Module:
    """One of its parameters is of a dtype without arithmetic."""
    model = Scaled()
    model.gain = nn.Parameter(torch.ones(1).to(torch.float8_e4m3fn))
    return model


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": lambda rank: mlp(),
    "wide": lambda rank: wide(),
    "cnn": lambda rank: cnn(),
    "normed_cnn": lambda rank: normed_cnn(),
    "channels_last_cnn": lambda rank: channels_last_cnn(),
    "frozen_mlp": lambda rank: frozen_mlp(),
    "transformer": lambda rank: TiedTransformer(),
    "branches": Branches,
    "scaled": lambda rank: Scaled(),
    "with_empty": lambda rank: WithEmpty(),
    "only_empty": lambda rank: OnlyEmpty(),
    "empty_beside_each": lambda rank: EmptyBesideEach(),
    "complex64": lambda rank: Complex(torch.complex64),
    "complex128": lambda rank: Complex(torch.complex128),
    "linear": lambda rank: Linear(),
    "plain_names": lambda rank: named("first", "last"),
    "swapped_names": lambda rank: named("alpha", "omega"),
    "float64": lambda rank: mlp().double(),
    "float16": lambda rank: mlp().half(),
    "float8": lambda rank: scaled_in_8_bits(),
    "bfloat16": lambda rank: mlp().bfloat16(),
}


def build(name: str, rank: int) -> nn.Module:
    """Make a model whose parameters are the same on every rank."""
    torch.manual_seed(7)
    return MODELS[name](rank)


def batch(rank: int, step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rank's inputs and labels of a step, whatever came before."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 16, generator=generator)
    return x.to(dtype), x[:, :CLASSES].argmax(1)


def loss_of(model: nn.Module, rank: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the loss on the rank's batch of a step."""
    x, labels = batch(rank, step, dtype)
    return functional.cross_entropy(model(x).float(), labels)
