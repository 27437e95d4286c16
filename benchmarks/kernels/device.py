"""BenchDevice: where cases run, and how that device's time and memory bus are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from benchmarks.kernels.yardstick import BYTES_PER_ELEM, update_in_place
from benchmarks.timing import Call, Stopwatch
from compressa.errors import BackendUnavailable
from compressa.machine import memory_bytes

_MOST_DOUBLED = 10


class BenchDevice(ABC):
    """A device.

    Attributes:
        kind: "cpu" or "cuda", as torch calls it.
        yardstick: What the stream is called that its memory bus carries best.
        yardstick_bytes: What that moves for an element.
        store_bytes: What crosses the bus for each byte of a stream that is only written.
        default_elems: The sizes that are measured if none are named; targets hold at the last.
    """

    kind: str
    yardstick: str
    yardstick_bytes: int
    store_bytes: int
    default_elems: tuple[int, ...]

    @property
    @abstractmethod
    def name(self) -> str:
        """What rows call it."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """How much it has."""

    @abstractmethod
    def watch(self) -> Stopwatch:
        """Return what times calls there."""

    @abstractmethod
    def stream(self, updated: torch.Tensor, source: torch.Tensor) -> None:
        """Do the yardstick's work once."""


class Cpu(BenchDevice):
    """The machine's own cores. A line that is only written is read first."""

    kind = "cpu"
    yardstick = "in-place update"
    yardstick_bytes = BYTES_PER_ELEM
    store_bytes = 2
    default_elems = (25_000_000, 200_000_000)

    @property
    def name(self) -> str:
        """Short: the header of a measurement has its model."""
        return self.kind

    @property
    def memory_bytes(self) -> int:
        """Physical memory."""
        return memory_bytes()

    def watch(self) -> Stopwatch:
        """Return one with the clock of the CPU."""
        return Stopwatch()

    def stream(self, updated: torch.Tensor, source: torch.Tensor) -> None:
        """Add in place."""
        update_in_place(updated.numpy(), source.numpy())


class Cuda(BenchDevice):
    """The current GPU. What is written costs what is read does: the yardstick is a copy.

    Raises:
        BackendUnavailable: torch sees none.
    """

    kind = "cuda"
    yardstick = "copy"
    yardstick_bytes = 8
    store_bytes = 1
    default_elems = (100_000_000,)

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise BackendUnavailable(
                "--device cuda: torch sees no GPU here; look at nvidia-smi, and install a build of "
                "torch for CUDA, or measure --device cpu"
            )

    @property
    def name(self) -> str:
        """The GPU's own."""
        return torch.cuda.get_device_name()

    @property
    def memory_bytes(self) -> int:
        """The GPU's."""
        return int(torch.cuda.get_device_properties().total_memory)

    def watch(self) -> Stopwatch:
        """Return one with the GPU's own clock."""
        return EventWatch()

    def stream(self, updated: torch.Tensor, source: torch.Tensor) -> None:
        """Copy."""
        updated.copy_(source)


class EventWatch(Stopwatch):
    """Times what calls have the GPU do, between two events on its stream."""

    def __init__(self) -> None:
        super().__init__(least_s=2e-3, pause=torch.cuda.synchronize)

    def sample(self, call: Call, loops: int = 1) -> float:
        """Return the seconds that a call takes there, as the mean of `loops` in a row."""
        make: Any = torch.cuda.Event
        begin, end = make(enable_timing=True), make(enable_timing=True)
        begin.record()
        for _ in range(loops):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / loops


def device_s(call: Call, loops: int, other: Call) -> float:
    """Return the seconds that a call takes the current GPU, as the mean of `loops` in a row.

    How long Python takes does not count: the GPU has other work until all calls wait for it.

    Args:
        call: Enqueues work, and does not wait for it.
        loops: Number of calls.
        other: Enqueues the other work; repeated as often as is needed.

    Raises:
        RuntimeError: No other work is long enough, so the calls do wait.
    """
    make: Any = torch.cuda.Event
    for doubled in range(_MOST_DOUBLED):
        begin, end = make(enable_timing=True), make(enable_timing=True)
        for _ in range(1 << doubled):
            other()
        begin.record()
        for _ in range(loops):
            call()
        end.record()
        in_time = not begin.query()
        end.synchronize()
        if in_time:
            return float(begin.elapsed_time(end)) / 1e3 / loops
    raise RuntimeError("a call to be measured waits for the GPU")


def device_named(kind: str) -> BenchDevice:
    """Return "cpu" or "cuda"."""
    return Cuda() if kind == "cuda" else Cpu()
