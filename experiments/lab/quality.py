"""How good a trained model is, and when it is as good as float32; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What is measured on the validation split, and when it is as good as float32.

    Attributes:
        name: Plain name, "accuracy" or "loss".
        unit: Unit of the value, e.g. "fraction" or "nats per character".
        larger_is_better: True for an accuracy, False for a loss.
        tolerance: How far from the final value of float32 still counts as reaching the target.
        relative: Whether the tolerance is a share of float32's value or an absolute distance.
    """

    name: str
    unit: str
    larger_is_better: bool
    tolerance: float
    relative: bool

    def target(self, final_float32: float) -> float:
        """The value that has to be reached, given where float32 ends."""
        slack = self.tolerance * (abs(final_float32) if self.relative else 1.0)
        return final_float32 - slack if self.larger_is_better else final_float32 + slack

    def reached(self, value: float, target: float) -> bool:
        """Whether ``value`` is at least as good as ``target`` (NaN never is)."""
        return value >= target if self.larger_is_better else value <= target


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One measured number with its name and unit."""

    name: str
    value: float
    unit: str
