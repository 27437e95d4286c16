"""What steps are measured to be: Profiler, of the last few; Ledger, of all of them together."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from compressa.engine.measuring.stats import CompressorStats, Overlap, Stats
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
        loss_s: From the end of a forward until backward began, as last seen; 0 if never.
    """

    def __init__(self, names: Sequence[frozenset[str]], steps: int) -> None:
        self.units = len(names)
        self._names = names
        self._ready_s = np.full((steps, len(names)), np.nan)
        self._codec_s = np.full((steps, len(names), 2), np.nan)
        self._needs: Mapping[str, float] = {}
        self._forward_s = 0.0
        self._columns = {name: i for i, name in enumerate(sorted(set[str]().union(*names)))}
        self._came_s = np.full((steps, len(self._columns)), np.nan)
        self._step_s = np.full(steps, np.nan)
        self._waited_s = np.zeros(steps)
        self.loss_s = 0.0
        self._row = -1
        self._backward_s: float | None = None
        self._forward_ended_s: float | None = None
        self._begun_s = 0.0

    def backward(self) -> None:
        """Note that backward begins now; if nobody does, it begins with the first gradient."""
        self._backward_s = time.perf_counter()

    def forward(self, needs: Mapping[str, float], forward_s: float) -> None:
        """Note when the forward needs parameters, in seconds by name; see `Planning.forward`."""
        self._needs, self._forward_s = needs, forward_s

    def forward_ended(self) -> None:
        """Note that a forward has ended now; it need not be told each time."""
        self._forward_ended_s = time.perf_counter()

    def begin(self) -> None:
        """Note that the first gradient of a step has come now, and the step before is complete."""
        now_s = time.perf_counter()
        begun_s = now_s if self._backward_s is None else self._backward_s
        if self._row >= 0:
            self._step_s[self._row] = begun_s - self._begun_s
        self._begun_s, self._backward_s = begun_s, None
        self._row = (self._row + 1) % len(self._ready_s)
        self._ready_s[self._row] = self._came_s[self._row] = self._step_s[self._row] = np.nan
        self._codec_s[self._row] = self._waited_s[self._row] = 0.0
        if self._forward_ended_s is not None:
            self.loss_s = max(begun_s - self._forward_ended_s, 0.0)
        self._forward_ended_s = None

    def arrived(self, names: Iterable[str]) -> None:
        """Note that the gradients of some parameters have come now."""
        after_s, row = time.perf_counter() - self._begun_s, self._came_s[self._row]
        for name in names:
            row[self._columns[name]] = after_s

    def waited(self, seconds: float) -> None:
        """Note that the training has waited for gradients for so many seconds more."""
        self._waited_s[self._row] += seconds

    def ready(self, units: Sequence[int]) -> None:
        """Note that all gradients of units, by their numbers, have come now."""
        for unit in units:
            self._ready_s[self._row, unit] = time.perf_counter() - self._begun_s

    def computed(self, units: Sequence[int], stage: str, seconds: float) -> None:
        """Note that units' codecs have computed, one after the other; from any thread.

        Args:
            units: Their numbers; each is taken to have had an equal share.
            stage: "encode" or "decode".
            seconds: For how long.
        """
        column = _ENCODE if stage == "encode" else _DECODE
        for unit in units:
            self._codec_s[self._row, unit, column] += seconds / len(units)

    @property
    def needs_s(self) -> list[float]:
        """By unit, seconds from the start of forward until its use; 0 where nobody said it."""
        return [self._need_s(unit) for unit in range(len(self._names))]

    def profile(self) -> Profile:
        """Return the median of the complete steps that were kept; zeros if there are none."""
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

    def steps(self) -> list[tuple[float, float]]:
        """Return how long each complete step took until the next began, and what of it was a wait.

        Both in seconds. A step lasts from the beginning of backward to that of the next.
        """
        complete = ~(np.isnan(self._step_s) | np.isnan(self._ready_s).any(axis=1))
        pairs = zip(self._step_s[complete].tolist(), self._waited_s[complete].tolist(), strict=True)
        return [(step_s, min(waited_s, step_s)) for step_s, waited_s in pairs]

    def came_s(self, name: str) -> float:
        """Return seconds from the start of backward to a parameter's gradient; 0 if unknown.

        It is the median of the steps that were kept.
        """
        return _median(self._came_s[:, self._columns[name]])

    def need_s(self, name: str) -> float:
        """Return seconds from the start of forward to a parameter's use; 0 if nobody said it."""
        return self._needs.get(name, 0.0)

    def _need_s(self, unit: int) -> float:
        """When the first of its parameters is used; at once if nobody has said it."""
        return min((self._needs.get(name, 0.0) for name in self._names[unit]), default=0.0)


class Ledger:
    """Adds up measurements; `add_unit`, `add_time` and `snapshot` are for any thread.

    Attributes:
        steps: How many have begun; for one thread.
        exposed_s: For how many seconds training has waited; for one thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: defaultdict[str, CompressorStats] = defaultdict(CompressorStats)
        self.steps = 0
        self.exposed_s = 0.0

    def add_unit(self, compressor: str, dense_bytes: int, payload_bytes: int) -> None:
        """Count one unit of one step.

        Args:
            compressor: Name of its compressor.
            dense_bytes: Size of its gradients, in their own dtype.
            payload_bytes: What this rank contributed after compression.
        """
        with self._lock:
            row = self._rows[compressor]
            row.dense_bytes += dense_bytes
            row.payload_bytes += payload_bytes

    def add_time(self, compressor: str, stage: str, seconds: float) -> None:
        """Count time that units took in a stage.

        Args:
            compressor: Name of their compressor.
            stage: "encode", "decode" or "wire".
            seconds: How long.
        """
        with self._lock:
            row = self._rows[compressor]
            setattr(row, f"{stage}_s", getattr(row, f"{stage}_s") + seconds)

    def snapshot(self, sent_bytes: int, messages: int, overlap: Overlap) -> Stats:
        """Return the sums so far.

        Args:
            sent_bytes: What the transport has sent, headers included.
            messages: How many messages it has sent.
            overlap: How updates are done.
        """
        with self._lock:
            rows = {name: CompressorStats(**vars(row)) for name, row in self._rows.items()}
        return Stats(
            steps=self.steps,
            dense_bytes=sum(row.dense_bytes for row in rows.values()),
            payload_bytes=sum(row.payload_bytes for row in rows.values()),
            sent_bytes=sent_bytes,
            messages=messages,
            codec_s=sum(row.encode_s + row.decode_s for row in rows.values()),
            exposed_s=self.exposed_s,
            compressors=rows,
            overlap=overlap,
        )


def _median(values: npt.NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0
