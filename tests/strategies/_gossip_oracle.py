"""What ranks that average with their neighbours do, in NumPy; see `_averaging_oracle`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from _averaging_oracle import Array, Rank, Values, initial

from compressa.codecs import Codec
from compressa.codecs.base import Draw

Compression = Callable[[Array], Array]


def mixed(everyone: list[Rank], weights: Array) -> None:
    """D-PSGD: every rank takes over the weighted mean of its neighbourhood."""
    before = [dict(rank.values) for rank in everyone]
    for i, rank in enumerate(everyone):
        for name in rank.values:
            rank.values[name] = sum(w * before[j][name] for j, w in enumerate(weights[i]))


class Choco:
    """CHOCO-SGD, with everybody's estimate of everybody."""

    def __init__(self, ranks: int, compress: Compression) -> None:
        self._estimates = [initial() for _ in range(ranks)]
        self._compress = compress

    def mix(self, everyone: list[Rank], weights: Array, step: float) -> None:
        for rank, estimate in zip(everyone, self._estimates, strict=True):
            for name, value in rank.values.items():
                estimate[name] = estimate[name] + self._compress(value - estimate[name])
        for i, rank in enumerate(everyone):
            for name in rank.values:
                rank.values[name] = rank.values[name] + step * sum(
                    w * (self._estimates[j][name] - self._estimates[i][name])
                    for j, w in enumerate(weights[i])
                )


def trained(
    weights: Array,
    ranks: int,
    steps: int,
    every: int,
    choco: Choco | None = None,
    step: float = 1.0,
) -> list[list[Values]]:
    """Return the parameters of each rank after each step."""
    everyone = [Rank(number) for number in range(ranks)]
    history = []
    for number in range(1, steps + 1):
        for rank in everyone:
            rank.step(number)
        if number % every == 0:
            if choco is None:
                mixed(everyone, weights)
            else:
                choco.mix(everyone, weights, step)
        history.append([{n: v.copy() for n, v in r.values.items()} for r in everyone])
    return history


def by(codec: Codec) -> Compression:
    """What a codec that draws nothing makes of a vector."""

    def compress(values: Array) -> Array:
        x = torch.from_numpy(values.astype(np.float32)).flatten()
        payload, out = torch.zeros(codec.wire_bytes(x.numel()), dtype=torch.uint8), x.clone()
        draw = Draw(0, 0, 0, 0, 0, False)
        length = codec.encode(x, payload, draw)
        codec.decode(payload[:length], out, draw)
        return out.numpy().astype(np.float64).reshape(values.shape)

    return compress
