"""Peers of sparsifiers: selection in plain torch and NumPy operations, as GRACE does it.

`with_residual` variants add the residual first and zero it where values were sent. The bare
calls `torch.topk` and `numpy.argpartition` only find the places, and are given the magnitudes'
array for nothing else to do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.operands import Operands
from benchmarks.kernels.peers import Operate, TorchPeer
from benchmarks.timing import Call

_DGC_SAMPLE = 0.01
_DGC_ADJUSTMENTS = 10
_SIDCO_FIRST = 0.25


def _kept(density: float, elems: int) -> int:
    return max(1, round(density * elems))


def _send(p: torch.Tensor, indices: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Gather what is sent; the rest is the new residual."""
    values = p[indices]
    residual.copy_(p)
    residual[indices] = 0.0
    return values


@TorchPeer
def topk_alone(operands: Operands, codec: Any) -> Operate:
    """`torch.topk` of |x|, unsorted."""
    kept = _kept(codec.density, operands.elems)
    return lambda x: torch.topk(x.abs(), kept, sorted=False).indices


def argpartition(operands: Operands, codec: Any) -> Call:
    """`numpy.argpartition` of |x|."""
    turns, first = operands.turns(), operands.elems - _kept(codec.density, operands.elems)
    return lambda: np.argpartition(np.abs(next(turns)[0].numpy()), first)[first:]


@TorchPeer
def topk_feedback(operands: Operands, codec: Any) -> Operate:
    """The largest of gradient and residual by `torch.topk`."""
    residual, kept = operands.residual, _kept(codec.density, operands.elems)

    def operate(x: torch.Tensor) -> torch.Tensor:
        p = x + residual
        return _send(p, torch.topk(p.abs(), kept, sorted=False).indices, residual)

    return operate


@TorchPeer
def randomk_feedback(operands: Operands, codec: Any) -> Operate:
    """The first of a random permutation."""
    residual, kept = operands.residual, _kept(codec.density, operands.elems)

    def operate(x: torch.Tensor) -> torch.Tensor:
        p = x + residual
        return _send(p, torch.randperm(p.numel(), device=p.device)[:kept], residual)

    return operate


def threshold_feedback(threshold: float) -> TorchPeer:
    """All that exceeds so many root mean squares."""

    def begin(operands: Operands, _: Any) -> Operate:
        residual = operands.residual

        def operate(x: torch.Tensor) -> torch.Tensor:
            p = x + residual
            least = threshold * p.square().mean().sqrt()
            return _send(p, (p.abs() >= least).nonzero().view(-1), residual)

        return operate

    return TorchPeer(begin)


def chunked_topk_feedback(density: float) -> TorchPeer:
    """The chunks of largest norm."""

    def begin(operands: Operands, compressor: Any) -> Operate:
        chunk = min(compressor.chunk, operands.elems)
        whole = operands.elems // chunk * chunk
        residual = operands.residual[:whole].view(-1, chunk)
        kept = _kept(density, len(residual))

        def operate(x: torch.Tensor) -> torch.Tensor:
            p = x[:whole].view(-1, chunk) + residual
            norms = p.square().sum(dim=1)
            return _send(p, torch.topk(norms, kept, sorted=False).indices, residual)

        return operate

    return TorchPeer(begin)


def dgc_feedback(density: float) -> TorchPeer:
    """A threshold from a sample, adjusted until about the right number is above it."""

    def begin(operands: Operands, _: Any) -> Operate:
        residual, elems = operands.residual, operands.elems
        random = torch.Generator(residual.device).manual_seed(0)
        sampled = max(1, round(_DGC_SAMPLE * elems))

        def operate(x: torch.Tensor) -> torch.Tensor:
            p = x + residual
            magnitude = p.abs()
            places = torch.randint(0, elems, (sampled,), device=p.device, generator=random)
            sample = magnitude[places]
            threshold = torch.topk(sample, _kept(density, sampled)).values.min().item()
            indices = _about(magnitude, threshold, density * elems)
            return _send(p, indices, residual)

        return operate

    return TorchPeer(begin)


def _about(magnitude: torch.Tensor, threshold: float, wanted: float) -> torch.Tensor:
    """Return the places above a threshold that leaves 0.8 to 1.3 times what is wanted."""
    for _ in range(_DGC_ADJUSTMENTS):
        mask = magnitude >= threshold
        found = int(mask.sum())
        if 0.8 * wanted <= found <= 1.3 * wanted:
            break
        threshold *= 1.3 if found > wanted else 0.7
    return mask.nonzero().view(-1)


def sidco_feedback(density: float) -> TorchPeer:
    """A threshold from an exponential fit, and a second one on what survives the first."""

    def begin(operands: Operands, _: Any) -> Operate:
        residual = operands.residual

        def operate(x: torch.Tensor) -> torch.Tensor:
            p = x + residual
            magnitude = p.abs()
            first = -magnitude.mean().item() * math.log(_SIDCO_FIRST)
            survivors = magnitude[magnitude >= first]
            if survivors.numel():
                least = survivors.min().item()
                beyond = survivors.mean().item() - least
                first = least - beyond * math.log(density / _SIDCO_FIRST)
            return _send(p, (magnitude >= first).nonzero().view(-1), residual)

        return operate

    return TorchPeer(begin)
