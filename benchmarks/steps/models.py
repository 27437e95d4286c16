"""Models that are trained: a perceptron and a GPT of some four million parameters each.

For a GPU there are the same ones of some seventy million. Batches are random, and a few take turns:
what a step costs does not depend on what is learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
        make: Returns it on torch's device, with values of the generator that torch has.
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
    """A causal transformer with norms first, of torch's own layers (Radford et al., 2019).

    Args:
        width: Of what goes from layer to layer.
        layers: How many.
        context: Tokens of a window.
    """

    def __init__(
        self, width: int = _GPT_WIDTH, layers: int = _LAYERS, context: int = _CONTEXT
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                _HEADS,
                4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _VOCABULARY, bias=False)
        # No buffers, which DDP would broadcast before each forward pass.
        self.mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.positions = torch.arange(context)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (windows * context, vocabulary) of tokens (windows, context), int64."""
        hidden = self.embedding(tokens) + self.position(self.positions)
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits.flatten(0, 1)


def _perceptron(width: int = _WIDTH) -> nn.Module:
    widths = [_INPUTS] + [width] * _HIDDEN
    layers = [
        layer
        for inputs, outputs in pairwise(widths)
        for layer in (nn.Linear(inputs, outputs), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(width, _CLASSES))


def _vectors(generator: torch.Generator, samples: int = _BATCH) -> Batch:
    inputs = torch.randn(samples, _INPUTS, generator=generator)
    return inputs, torch.randint(_CLASSES, (samples,), generator=generator)


def _windows(generator: torch.Generator, windows: int = _WINDOWS, context: int = _CONTEXT) -> Batch:
    tokens = torch.randint(_VOCABULARY, (windows, context + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:].flatten()


MODELS: Mapping[str, Trained] = {
    "mlp": Trained(_perceptron, _vectors, _BATCH),
    "gpt": Trained(GPT, _windows, _WINDOWS),
}

_LARGE_WIDTH, _LARGE_BATCH = 4096, 4096
_LARGE_GPT_WIDTH, _LARGE_LAYERS, _LARGE_CONTEXT, _LARGE_WINDOWS = 768, 10, 256, 16

LARGE_MODELS: Mapping[str, Trained] = {
    "large mlp": Trained(
        partial(_perceptron, _LARGE_WIDTH), partial(_vectors, samples=_LARGE_BATCH), _LARGE_BATCH
    ),
    "large gpt": Trained(
        partial(GPT, _LARGE_GPT_WIDTH, _LARGE_LAYERS, _LARGE_CONTEXT),
        partial(_windows, windows=_LARGE_WINDOWS, context=_LARGE_CONTEXT),
        _LARGE_WINDOWS,
    ),
}
"""For a GPU: a batch has as many rows, or tokens, as keep it busy for a step."""
