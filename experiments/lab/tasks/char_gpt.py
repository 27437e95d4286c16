"""A character-level GPT in plain torch, trained on the standard library's source text.

Pre-norm transformer with learned positions and a head of its own (Radford et al., 2019, "Language
Models are Unsupervised Multitask Learners", in small). Two sizes: "demo" with about 1.5 million
and "full" with about 4 million parameters; both see 4 windows of 64 characters, 256 tokens, per
rank and step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lab.records import Quality
from lab.tasks.corpus import VOCABULARY, standard_library
from lab.tasks.task import Batch, EpochOrder, Metric, seeded, warmup_then_cosine


@dataclass(frozen=True, kw_only=True)
class Size:
    """Shape of a model and of its batches."""

    width: int
    layers: int
    heads: int
    context: int = 64
    windows_per_batch: int = 4
    validation_windows: int = 128
    learning_rate: float = 2e-3


SIZES = {
    "demo": Size(width=160, layers=5, heads=5, validation_windows=64),
    "full": Size(width=256, layers=5, heads=8),
}


class Block(nn.Module):
    """Causal self-attention and a perceptron of four times the width, each behind a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_attention = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.project = nn.Linear(size.width, size.width)
        self.norm_mlp = nn.LayerNorm(size.width)
        self.expand = nn.Linear(size.width, 4 * size.width)
        self.contract = nn.Linear(4 * size.width, size.width)

    def _attend(self, hidden: Tensor) -> Tensor:
        batch, context, width = hidden.shape
        split = self.qkv(hidden).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, context, width))
        return projected

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, context, width) to the same shape."""
        hidden = hidden + self._attend(self.norm_attention(hidden))
        widened = nn.functional.gelu(self.expand(self.norm_mlp(hidden)))
        result: Tensor = hidden + self.contract(widened)
        return result


class GPT(nn.Module):
    """Embedding, blocks, norm, head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.position = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """Logits (batch, context, vocabulary) from tokens (batch, context), int64."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        hidden = self.blocks(self.embedding(characters) + self.position(positions))
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class CharGPT:
    """The character GPT as a :class:`~lab.tasks.task.Task`.

    Args:
        size: "demo" or "full".
    """

    quality = Quality(
        quality_name="loss",
        quality_unit="nats per character",
        larger_is_better=False,
        tolerance=0.01,
        tolerance_relative=True,
    )

    def __init__(self, size: str) -> None:
        self.name = f"gpt-{size}"
        self.size = SIZES[size]
        corpus = standard_library()
        self._train = self._windows(corpus.train)
        held_back = self._windows(corpus.validation)
        stride = max(1, len(held_back) // self.size.validation_windows)
        self._validation = held_back[::stride][: self.size.validation_windows].long()
        self._order = EpochOrder(len(self._train), self.size.windows_per_batch)

    def _windows(self, stream: Tensor) -> Tensor:
        """Windows that do not overlap: (count, context + 1), the last column a target only."""
        length = self.size.context + 1
        count = len(stream) // length
        return stream[: count * length].view(count, length)

    def build_model(self, seed: int) -> nn.Module:
        """A fresh GPT with bits that depend on ``seed`` only."""
        return seeded(seed, GPT, self.size)

    def batch(self, rank: int, world: int, step: int, seed: int) -> Batch:
        """Characters and the characters that follow them, both (windows, context), int64."""
        windows = self._train[self._order.indices(rank, world, step, seed)].long()
        return windows[:, :-1], windows[:, 1:]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per character."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def optimizer(self, model: nn.Module, steps: int) -> tuple[Optimizer, LambdaLR]:
        """AdamW with a short warm-up and cosine decay."""
        optimizer = AdamW(
            model.parameters(),
            lr=self.size.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            fused=True,
        )
        return optimizer, warmup_then_cosine(optimizer, steps, warmup=max(1, steps // 15))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> list[Metric]:
        """Loss in nats per character over fixed windows of the validation files."""
        logits: Tensor = model(self._validation[:, :-1])
        loss = self.loss(logits, self._validation[:, 1:]).item()
        return [Metric(name="loss", value=loss, unit="nats per character")]
