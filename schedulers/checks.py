"""Checks of numbers that schedulers are given."""

from __future__ import annotations

import math


def not_negative(name: str, value: float) -> None:
    """Raise ValueError unless a value is finite and at least 0."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and at least 0, not {value}")


def positive(name: str, value: float | None) -> None:
    """Raise ValueError unless a value is finite and more than 0, or None."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and more than 0, not {value}")
