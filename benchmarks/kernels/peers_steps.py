"""Peers of whole steps: PowerSGD's power iteration, and THC's rotation, rounding and way back."""

from __future__ import annotations

import math
from typing import Any

import torch

from benchmarks.kernels.operands import Operands, Turns
from benchmarks.kernels.peers_dense import whole_blocks
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


def thc_feedback(operands: Operands, compressor: Any) -> Call:
    """Rotate by random signs and Hadamard, round to the table at random, and all of it back."""
    book, random = compressor.book, torch.Generator().manual_seed(0)
    chunk = 1 << (min(book.chunk, operands.elems).bit_length() - 1)
    turns, residual = operands.turns(), whole_blocks(operands.residual, chunk)
    table = torch.tensor(book.table, dtype=torch.float32)
    signs = torch.randint(0, 2, (chunk,), generator=random) * 2.0 - 1

    def call() -> torch.Tensor:
        p = whole_blocks(next(turns)[0], chunk) + residual
        reach = p.norm(dim=1, keepdim=True) * (book.clip / math.sqrt(chunk))
        v = _hadamard(p * signs) / (reach * math.sqrt(chunk))
        v = ((v + 1) * (book.levels / 2)).clamp_(0, book.levels)
        below = (torch.bucketize(v, table, right=True) - 1).clamp_(max=len(table) - 2)
        low, high = table[below], table[below + 1]
        codes = below + (torch.rand(v.shape, generator=random) < (v - low) / (high - low))
        mean = (table[codes] * (2 / book.levels) - 1) * (reach / math.sqrt(chunk))
        mean = _hadamard(mean) * signs
        torch.sub(p, mean, out=residual)
        return mean

    return call


def _hadamard(x: torch.Tensor) -> torch.Tensor:
    """Butterflies over the last dimension, a power of two; not normalised."""
    rows, chunk = x.shape
    half = 1
    while half < chunk:
        pairs = x.view(rows, -1, 2, half)
        x = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2)
        half *= 2
    return x.view(rows, chunk)
