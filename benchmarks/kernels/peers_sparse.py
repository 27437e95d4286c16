"""Peers of sparsifiers: selection in plain torch and NumPy operations, as GRACE does it.

Each chooses what to send of the gradient and the residual; what was not sent is the new residual.
The bare calls `torch.topk` and `numpy.argpartition` only find the indices, and are given the
magnitudes' array for nothing else to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.operands import Operands
from benchmarks.kernels.peers import Operate, TorchPeer
from benchmarks.timing import Call

Choose = Callable[[torch.Tensor], torch.Tensor]
"""Returns the indices of what is sent, of gradient and residual together."""

_DGC_SAMPLE = 0.01
_DGC_ADJUSTMENTS = 10
_SIDCO_FIRST = 0.25


def _kept(density: float, elems: int) -> int:
    return max(1, round(density * elems))


def _feedback(begin: Callable[[Operands, Any], Choose], chunked: bool = False) -> TorchPeer:
    """Send what is chosen, and keep the rest.

    Args:
        begin: Makes the choice, of the operands and the case's compressor.
        chunked: Whether whole chunks of the compressor's are sent: they are in rows then.
    """

    def operation(operands: Operands, compressor: Any) -> Operate:
        choose, chunk = begin(operands, compressor), 1
        if chunked:
            chunk = min(compressor.chunk, operands.elems)
        whole = operands.elems // chunk * chunk
        shape = (-1, chunk) if chunked else (-1,)
        residual = operands.residual[:whole].view(shape)

        def operate(x: torch.Tensor) -> torch.Tensor:
            p = x[:whole].view(shape) + residual
            indices = choose(p)
            values = p[indices]
            residual.copy_(p)
            residual[indices] = 0.0
            return values

        return operate

    return TorchPeer(operation)


@TorchPeer
def topk_alone(operands: Operands, codec: Any) -> Operate:
    """`torch.topk` of |x|, unsorted."""
    kept = _kept(codec.density, operands.elems)
    return lambda x: torch.topk(x.abs(), kept, sorted=False).indices


def argpartition(operands: Operands, codec: Any) -> Call:
    """`numpy.argpartition` of |x|."""
    turns, first = operands.turns(), operands.elems - _kept(codec.density, operands.elems)
    return lambda: np.argpartition(np.abs(next(turns)[0].numpy()), first)[first:]


@_feedback
def topk_feedback(operands: Operands, codec: Any) -> Choose:
    """The largest by `torch.topk`."""
    kept = _kept(codec.density, operands.elems)
    return lambda p: torch.topk(p.abs(), kept, sorted=False).indices


@_feedback
def randomk_feedback(operands: Operands, codec: Any) -> Choose:
    """The first of a random permutation."""
    kept = _kept(codec.density, operands.elems)
    return lambda p: torch.randperm(p.numel(), device=p.device)[:kept]


def threshold_feedback(threshold: float) -> TorchPeer:
    """All that exceeds so many root mean squares."""

    def choose(p: torch.Tensor) -> torch.Tensor:
        least = threshold * p.square().mean().sqrt()
        return (p.abs() >= least).nonzero().view(-1)

    return _feedback(lambda _, __: choose)


def chunked_topk_feedback(density: float) -> TorchPeer:
    """The chunks of largest norm."""

    def choose(p: torch.Tensor) -> torch.Tensor:
        norms = p.square().sum(dim=1)
        return torch.topk(norms, _kept(density, len(p)), sorted=False).indices

    return _feedback(lambda _, __: choose, chunked=True)


def dgc_feedback(density: float) -> TorchPeer:
    """A threshold from a sample, adjusted until about the right number is above it."""

    def begin(operands: Operands, _: Any) -> Choose:
        elems = operands.elems
        random = torch.Generator(operands.residual.device).manual_seed(0)
        sampled = max(1, round(_DGC_SAMPLE * elems))

        def choose(p: torch.Tensor) -> torch.Tensor:
            magnitude = p.abs()
            drawn = torch.randint(0, elems, (sampled,), device=p.device, generator=random)
            sample = magnitude[drawn]
            threshold = torch.topk(sample, _kept(density, sampled)).values.min().item()
            return _about(magnitude, threshold, density * elems)

        return choose

    return _feedback(begin)


def _about(magnitude: torch.Tensor, threshold: float, wanted: float) -> torch.Tensor:
    """Return the indices above a threshold that leaves 0.8 to 1.3 times what is wanted."""
    for _ in range(_DGC_ADJUSTMENTS):
        mask = magnitude >= threshold
        found = int(mask.sum())
        if 0.8 * wanted <= found <= 1.3 * wanted:
            break
        threshold *= 1.3 if found > wanted else 0.7
    return mask.nonzero().view(-1)


def sidco_feedback(density: float) -> TorchPeer:
    """A threshold from an exponential fit, and a second one on what survives the first."""

    def choose(p: torch.Tensor) -> torch.Tensor:
        magnitude = p.abs()
        first = -magnitude.mean().item() * math.log(_SIDCO_FIRST)
        survivors = magnitude[magnitude >= first]
        if survivors.numel():
            least = survivors.min().item()
            beyond = survivors.mean().item() - least
            first = least - beyond * math.log(density / _SIDCO_FIRST)
        return (magnitude >= first).nonzero().view(-1)

    return _feedback(lambda _, __: choose)
