"""Bench: measures cases beside the yardstick and their peers, on threads of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from compressa.kernels import KernelUnavailable
from compressa.kernels.threads import KernelThreads

from benchmarks.kernels.cases import Case, Peer, PeerUnavailable
from benchmarks.kernels.device import CPU, BenchDevice, caches_bytes
from benchmarks.kernels.operands import Operands
from benchmarks.kernels.records import Benchmark, Header, Measurement, Row, Unit, case_at
from benchmarks.timing import (
    Call,
    Interleaved,
    Samples,
    Stopwatch,
    affordable,
    interleave,
    limit_ratio,
)
from compressa.compressor import Compressor
from compressa.errors import ConfigError
from compressa.machine import now

_WARM_UP_CALLS = 2  # the first compiles or loads, and touches memory; state settles in the second
_PEER_BUDGET_S = 3.0  # then a slow peer is measured once, after a call to warm up
_MEMORY_PER_ELEM = 48  # operands and, twice their size, what peers make
_PER_SECOND = {"ms": 1e3, "us": 1e6}


class Bench:
    """Measures cases one after the other and collects their rows.

    Args:
        threads: Threads that work on a call, in kernels and in torch.
        repeats: Samples per case; peers may get fewer.
        watch: Tells the time; None for the device's own.
        device: Where cases run; the CPU if left out.

    Attributes:
        rows: What was measured so far.
        device: Where.
        repeats: Samples per case.
        unavailable: Names of cases that have no kernels for the device.
    """

    def __init__(
        self,
        *,
        threads: int,
        repeats: int,
        watch: Stopwatch | None = None,
        device: BenchDevice = CPU,
    ) -> None:
        self.rows: list[Row] = []
        self.unavailable: set[str] = set()
        self._threads = threads
        self.repeats = repeats
        self.device = device
        self._watch = watch or self.device.watch()
        self._yardstick_gb_per_s: dict[int, list[float]] = {}

    def measurement(self) -> Measurement:
        """Return all rows so far, with those of the yardstick, as they are written down."""
        bandwidth: dict[str, Any] = {"metric": "bandwidth", "unit": "GB/s", "limit_ratio": None}
        yardsticks = [
            self._filled(
                "kernels", case_at(self.device.yardstick, n), Samples(tuple(values)), **bandwidth
            )
            for n, values in self._yardstick_gb_per_s.items()
        ]
        header = Header.here(caches_bytes=caches_bytes())
        return Measurement(header=header, rows=[*yardsticks, *self.rows])

    def run(self, cases: Sequence[Case], sizes: Sequence[int]) -> Iterator[Row]:
        """Measure every case whose compressor is there, at each size; yield rows as they come.

        A case of one shape is measured once.

        Args:
            cases: What.
            sizes: Numbers of elements.

        Raises:
            ConfigError: The machine has not enough memory for a size.
        """
        for elems in sizes:
            require_memory(elems, self.device)
        with self.hired():
            for elems in sizes:
                yield from self._run_size([case for case in cases if not case.shape], elems)
            for case in (case for case in cases if case.shape):
                yield from self._run_size([case], torch.Size(case.shape).numel())

    @contextmanager
    def hired(self) -> Iterator[None]:
        """Have the threads at work for a while; torch's own number is restored afterwards."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with (
                ThreadPoolExecutor(self._threads) as pool,
                KernelThreads(pool, self._threads).enlisted(),
            ):
                yield
        finally:
            torch.set_num_threads(before)

    def measure(
        self,
        case: Case,
        operands: Operands,
        *,
        benchmark: Benchmark = "kernels",
        with_peers: bool = True,
    ) -> list[Row]:
        """Measure one case.

        Args:
            case: What.
            operands: On the bench's device; float32, and taken in the case's dtype.
            benchmark: What rows are called.
            with_peers: Whether the case's peers are measured beside it.

        Returns:
            A row per peer, or one without; none if there is no such compressor or kernel.
        """
        compressor = case.build()
        if compressor is None:
            return []
        operands = operands.of(case.gradient)
        operands.reset()
        try:
            call = case.prepare(compressor, operands)
            for _ in range(_WARM_UP_CALLS):
                call()
        except KernelUnavailable:
            self.unavailable.add(case.name)
            return []
        times = self._interleave(call, operands, self.repeats)
        bus_bytes = case.bus_bytes(compressor, operands.elems, self.device.store_bytes)
        yardstick_bytes = self.device.yardstick_bytes * operands.elems
        ratio = None if bus_bytes is None else limit_ratio(bus_bytes, yardstick_bytes, times)
        row = self.row(benchmark, case_at(case.name, operands.elems), times.call_s, ratio)
        peers = [peer for peer in case.peers if with_peers and self.device.kind in peer.devices]
        rows = [self._beside(row, peer, compressor, operands) for peer in peers] or [row]
        self.rows += rows
        return rows

    def _run_size(self, cases: Sequence[Case], elems: int) -> Iterator[Row]:
        if any(case.build() is not None for case in cases):
            operands = Operands(elems, self.device)
            for case in cases:
                yield from self.measure(case, operands)

    def _interleave(self, call: Call, operands: Operands, repeats: int) -> Interleaved:
        times = interleave(self._watch, call, operands.stream, repeats)
        gigabytes = self.device.yardstick_bytes * operands.elems / 1e9
        found = self._yardstick_gb_per_s.setdefault(operands.elems, [])
        found.extend(gigabytes / second for second in times.yardstick_s.values)
        return times

    def row(self, benchmark: Benchmark, case: str, seconds: Samples, ratio: float | None) -> Row:
        """Return a row of times, which is not kept.

        Args:
            benchmark: Which.
            case: A name at a number of elements; see `case_at`.
            seconds: Of a call.
            ratio: Of the limit, if there is one.
        """
        unit: Unit = "ms" if benchmark == "kernels" else "us"
        times = seconds.map(lambda second: _PER_SECOND[unit] * second)
        return self._filled(benchmark, case, times, metric="time", unit=unit, limit_ratio=ratio)

    def _filled(self, benchmark: Benchmark, case: str, samples: Samples, **more: Any) -> Row:
        return Row(
            benchmark=benchmark,
            case=case,
            median=samples.median,
            p20=samples.p20,
            p80=samples.p80,
            peer=None,
            peer_median=None,
            device=self.device.name,
            threads=self._threads,
            version=version("compressa"),
            timestamp=now(),
            **more,
        )

    def _beside(self, row: Row, peer: Peer, compressor: Compressor, operands: Operands) -> Row:
        """Return the row with a peer's time, in the same unit, or with the reason of its lack."""
        operands.reset()
        try:
            call = peer.prepare(operands, compressor)
        except PeerUnavailable as error:
            return row.model_copy(update={"peer": f"{peer.name}: {error}"})
        repeats = affordable(self._watch, call, self.repeats, _PEER_BUDGET_S)
        seconds = self._interleave(call, operands, repeats).call_s
        median = _PER_SECOND[row.unit] * seconds.median
        return row.model_copy(update={"peer": peer.name, "peer_median": median})


def require_memory(elems: int, device: BenchDevice) -> None:
    """Refuse a size that would drive the device out of memory.

    Raises:
        ConfigError: It would.
    """
    needed = _MEMORY_PER_ELEM * elems
    if needed > device.memory_bytes:
        raise ConfigError(
            f"{elems} elements take {needed / 1e9:.0f} GB with all peers, and {device.name} "
            f"has {device.memory_bytes / 1e9:.0f} GB; choose smaller ones with --elems"
        )
