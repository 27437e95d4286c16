"""Profiler: when each unit of a step is ready, and how long its codec computes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from compressa.schedulers import Profile, UnitTimes

_ENCODE, _DECODE = 0, 1


class Profiler:
    """Measures the last few steps of one phase; costs a few assignments per unit.

    Times of codecs may be noted by several threads, each unit's by one at a time.

    Args:
        names: By unit, the parameters in it.
        steps: How many steps to keep; the profile is their median.

    Attributes:
        units: How many units there are.
    """

    def __init__(self, names: Sequence[frozenset[str]], steps: int) -> None:
        self.units = len(names)
        self._names = names
        self._ready_s = np.full((steps, len(names)), np.nan)
        self._codec_s = np.full((steps, len(names), 2), np.nan)
        self._needs: Mapping[str, float] = {}
        self._forward_s = 0.0
        self._row = -1
        self._backward_s: float | None = None
        self._begun_s = 0.0

    def backward(self) -> None:
        """Note that backward begins; if nobody does, it begins with the first gradient."""
        self._backward_s = time.perf_counter()

    def forward(self, needs: Mapping[str, float], forward_s: float) -> None:
        """Note when the forward needs parameters; see `Planning.forward`."""
        self._needs, self._forward_s = needs, forward_s

    def begin(self) -> None:
        """Note that the first gradient of a step has come."""
        now_s = time.perf_counter()
        self._begun_s = now_s if self._backward_s is None else self._backward_s
        self._backward_s = None
        self._row = (self._row + 1) % len(self._ready_s)
        self._ready_s[self._row] = np.nan
        self._codec_s[self._row] = 0.0

    def ready(self, unit: int) -> None:
        """Note that all gradients of a unit have come."""
        self._ready_s[self._row, unit] = time.perf_counter() - self._begun_s

    def computed(self, unit: int, stage: str, seconds: float) -> None:
        """Note that a unit's codec has computed."""
        self._codec_s[self._row, unit, _ENCODE if stage == "encode" else _DECODE] += seconds

    def profile(self) -> Profile:
        """Return the median of the steps that were kept, which are complete."""
        measured = ~np.isnan(self._ready_s).any(axis=1)
        if not measured.any():
            return Profile((UnitTimes(),) * len(self._names))
        ready = np.median(self._ready_s[measured], axis=0)
        codec = np.median(self._codec_s[measured], axis=0)
        units = tuple(
            UnitTimes(float(ready[i]), self._need_s(i), *map(float, codec[i]))
            for i in range(len(self._names))
        )
        return Profile(units, self._forward_s, float(ready.max(initial=0.0)))

    def _need_s(self, unit: int) -> float:
        """When the first of its parameters is used; at once if nobody has said it."""
        return min((self._needs.get(name, 0.0) for name in self._names[unit]), default=0.0)
