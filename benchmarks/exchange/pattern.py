"""Bytes that are known on every rank, so that what has come can be compared with what was sent."""

from __future__ import annotations

import torch

_PERIOD = 251  # a prime: no chunk looks like the one before it


def pattern(size_bytes: int) -> torch.Tensor:
    """Return so many bytes, uint8."""
    period = torch.arange(_PERIOD, dtype=torch.uint8)
    return period.repeat(-(-size_bytes // _PERIOD))[:size_bytes].clone()


def check_pattern(what: str, data: torch.Tensor) -> None:
    """Raise ArithmeticError unless these bytes are a pattern."""
    if not torch.equal(data, pattern(data.numel())):
        raise ArithmeticError(f"{what} has brought wrong bytes")
