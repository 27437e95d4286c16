"""Models that are trained: a perceptron and a GPT of some four million parameters each.

Batches are random, and a few take turns: what a step costs does not depend on what is learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
"""Inputs, and classes of int64."""

_INPUTS, _WIDTH, _HIDDEN, _CLASSES, _BATCH = 64, 1024, 5, 10, 32
_VOCABULARY, _GPT_WIDTH, _LAYERS, _HEADS, _CONTEXT, _WINDOWS = 128, 256, 5, 8, 64, 4
_BATCHES = 8


class Trained(NamedTuple):
    """What can be trained.

    Attributes:
        make: Returns it, with values of the generator that torch has.
        batch: Draws a batch.
        samples: Of a batch.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    samples: int

    def batches(self, seed: int) -> Sequence[Batch]:
        """Return batches that take turns; equal seeds give equal bits."""
        generator = torch.Generator().manual_seed(seed)
        return [self.batch(generator) for _ in range(_BATCHES)]


class GPT(nn.Module):
    """A causal transformer with norms first, of torch's own layers (Radford et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _GPT_WIDTH)
        self.position = nn.Embedding(_CONTEXT, _GPT_WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                _GPT_WIDTH,
                _HEADS,
                4 * _GPT_WIDTH,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(_LAYERS)
        )
        self.norm = nn.LayerNorm(_GPT_WIDTH)
        self.head = nn.Linear(_GPT_WIDTH, _VOCABULARY, bias=False)
        # No buffers, which DDP would broadcast before each forward pass.
        self.mask = nn.Transformer.generate_square_subsequent_mask(_CONTEXT)
        self.positions = torch.arange(_CONTEXT)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (windows * context, vocabulary) of tokens (windows, context), int64."""
        hidden = self.embedding(tokens) + self.position(self.positions)
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits.flatten(0, 1)


def _perceptron() -> nn.Module:
    widths = [_INPUTS] + [_WIDTH] * _HIDDEN
    layers = [
        layer
        for inputs, outputs in pairwise(widths)
        for layer in (nn.Linear(inputs, outputs), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(_WIDTH, _CLASSES))


def _vectors(generator: torch.Generator) -> Batch:
    inputs = torch.randn(_BATCH, _INPUTS, generator=generator)
    return inputs, torch.randint(_CLASSES, (_BATCH,), generator=generator)


def _windows(generator: torch.Generator) -> Batch:
    tokens = torch.randint(_VOCABULARY, (_WINDOWS, _CONTEXT + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:].flatten()


MODELS: Mapping[str, Trained] = {
    "mlp": Trained(_perceptron, _vectors, _BATCH),
    "gpt": Trained(GPT, _windows, _WINDOWS),
}
