"""The peer of PowerSGD: one power iteration in torch's own products, nothing copied."""

from __future__ import annotations

import math
from typing import Any

import torch

from benchmarks.kernels.operands import Operands, Turns
from benchmarks.timing import Call

_SMALL = 1e-3  # nothing is orthonormalised here: with such factors repeated steps stay finite


def power_iteration(operands: Operands, compressor: Any) -> Call:
    """M += gradient; P = M Q; Q' = M^T P; M -= P Q'^T, with factors as PyTorch's hook has them.

    Less than PowerSGD does: no orthonormalisation, and the product itself is written nowhere.
    """
    m, q, turns = _start(operands, compressor)
    p, new_q = torch.zeros(len(m), q.shape[1]), torch.zeros_like(q)

    def call() -> torch.Tensor:
        m.add_(next(turns)[0].view_as(m))
        torch.mm(m, q, out=p)
        torch.mm(m.t(), p, out=new_q)
        return m.addmm_(p, new_q.t(), alpha=-1.0)

    return call


def power_iteration_transposed(operands: Operands, compressor: Any) -> Call:
    """The same with a vector of the factors in a row, which suits the products better."""
    m, q, turns = _start(operands, compressor)
    q = q.t().contiguous()
    p, new_q = torch.zeros(len(q), len(m)), torch.zeros_like(q)

    def call() -> torch.Tensor:
        m.add_(next(turns)[0].view_as(m))
        torch.mm(q, m.t(), out=p)
        torch.mm(p, m, out=new_q)
        return m.addmm_(p.t(), new_q, alpha=-1.0)

    return call


def _start(operands: Operands, compressor: Any) -> tuple[torch.Tensor, torch.Tensor, Turns]:
    side = math.isqrt(operands.elems)
    factor = operands.gradient[: side * compressor.approx_rank].view(side, -1)
    return operands.residual.view(side, side), factor * _SMALL, operands.turns()
