"""BenchDevice: where cases run, and how that device's time and memory bus are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from compressa.kernels.threads import over_slices

from benchmarks.timing import Call, Stopwatch
from compressa.errors import BackendUnavailable
from compressa.machine import memory_bytes

F32 = npt.NDArray[np.float32]

_MOST_DOUBLED = 10
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class BenchDevice:
    """A device.

    Attributes:
        kind: "cpu" or "cuda", as torch calls it.
        name: What rows call it.
        yardstick: What the stream is called that its memory bus carries best.
        yardstick_bytes: What that moves for an element.
        store_bytes: What crosses the bus for each byte of a stream that is only written.
        default_elems: The sizes that are measured if none are named; targets hold at the last.
        memory_bytes: How much it has.
        watch: Makes what times calls there.
        stream: Does the yardstick's work once, given what is updated and what is only read: two
            float32 vectors as long.
    """

    kind: str
    name: str
    yardstick: str
    yardstick_bytes: int
    store_bytes: int
    default_elems: tuple[int, ...]
    memory_bytes: int
    watch: Callable[[], Stopwatch]
    stream: Callable[[torch.Tensor, torch.Tensor], object]


def _add(updated: torch.Tensor, source: torch.Tensor) -> None:
    """Add in place; threads share the work as they share that of kernels."""
    a, b = updated.numpy(), source.numpy()
    over_slices(a.size, 16, lambda low, high: _update(a[low:high], b[low:high]))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _update(a: F32, b: F32) -> None:
    for i in range(a.size):
        a[i] = a[i] + b[i]


CPU = BenchDevice(
    kind="cpu",
    name="cpu",
    yardstick="in-place update",
    yardstick_bytes=12,
    store_bytes=2,
    default_elems=(25_000_000, 200_000_000),
    memory_bytes=memory_bytes(),
    watch=Stopwatch,
    stream=_add,
)
"""The machine's own cores; the header of a measurement has their model.

The yardstick is a[i] = a[i] + b[i]: two reads and a write per element, and nothing else. A line
that is only written is read first: so would those of a write-only stream be, and a pure read leaves
the bus's other direction idle.
"""


def caches_bytes() -> dict[str, int]:
    """Return the caches that the first core sees, by name; nothing where Linux lists none."""
    return {_cache(index): _cache_bytes(index) for index in sorted(_CACHES.glob("index*"))}


def _cache(index: Path) -> str:
    kind = (index / "type").read_text().strip().lower()
    level = (index / "level").read_text().strip()
    return f"L{level}" if kind == "unified" else f"L{level} {kind}"


def _cache_bytes(index: Path) -> int:
    text = (index / "size").read_text().strip()
    return int(text.rstrip("KMG")) * _SUFFIXES.get(text[-1], 1)


def current_gpu() -> BenchDevice:
    """Return the current GPU. What is written costs what is read does: the yardstick is a copy.

    Raises:
        BackendUnavailable: torch sees none.
    """
    if not torch.cuda.is_available():
        raise BackendUnavailable(
            "--device cuda: torch sees no GPU here; look at nvidia-smi, and install a build of "
            "torch for CUDA, or measure --device cpu"
        )
    return BenchDevice(
        kind="cuda",
        name=torch.cuda.get_device_name(),
        yardstick="copy",
        yardstick_bytes=8,
        store_bytes=1,
        default_elems=(100_000_000,),
        memory_bytes=int(torch.cuda.get_device_properties().total_memory),
        watch=EventWatch,
        stream=torch.Tensor.copy_,
    )


class EventWatch(Stopwatch):
    """Times what calls have the GPU do, between two events on its stream."""

    def __init__(self) -> None:
        super().__init__(least_s=2e-3, pause=torch.cuda.synchronize)

    def sample(self, call: Call, loops: int = 1) -> float:
        """Return the seconds that a call takes there, as the mean of `loops` in a row."""
        begin, end = _enqueued(call, loops)
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
    for doubled in range(_MOST_DOUBLED):
        for _ in range(1 << doubled):
            other()
        begin, end = _enqueued(call, loops)
        in_time = not begin.query()
        end.synchronize()
        if in_time:
            return float(begin.elapsed_time(end)) / 1e3 / loops
    raise RuntimeError("a call to be measured waits for the GPU")


def _enqueued(call: Call, loops: int) -> tuple[Any, Any]:
    """Enqueue calls between two events, and return these."""
    make: Any = torch.cuda.Event
    begin, end = make(enable_timing=True), make(enable_timing=True)
    begin.record()
    for _ in range(loops):
        call()
    end.record()
    return begin, end
