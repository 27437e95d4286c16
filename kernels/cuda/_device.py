"""Device: what launches kernels and has memory for them; a GPU (`_gpu.py`), but for tests.

A ``.cu`` file beside this one holds the kernels of one algorithm, and the ``.py`` file of its name
the functions that launch them.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

HOME = Path(__file__).parent
# NVRTC of CUDA 12 takes a lambda with an `auto` parameter for a host function without the last.
OPTIONS = ("--std=c++17", "--fmad=false", "--device-as-default-execution-space")
WARP, CTA = 32, 256
"""Threads that work in step, and threads of a block of the launch; see ``_team.cuh``."""
_WAVES = 16  # launches of more blocks than the GPU holds at once gain nothing: kernels have loops

Argument = Any
"""An array of the device, a NumPy scalar of the parameter's very type, None: a null pointer; or a
`Struct`."""


class Struct(ABC):
    """What a kernel takes by value, with addresses of arrays in it."""

    @abstractmethod
    def filled(self, address: Callable[[Any], int]) -> npt.NDArray[Any]:
        """Return an array of the one struct.

        Args:
            address: Tells where an array lies, for the kernel.
        """

    @cached_property
    def on_gpu(self) -> npt.NDArray[Any]:
        """The same, of arrays that say themselves where on a GPU they lie."""
        return self.filled(lambda array: int(array.__cuda_array_interface__["data"][0]))


@dataclass(frozen=True, eq=False)
class Table(Struct):
    """A struct that a kernel takes by value, with addresses of many arrays in it.

    Attributes:
        layout: The struct, as it lies in memory.
        arrays: For fields that hold addresses: the arrays, or None where there is none.
        numbers: For all other fields.
    """

    layout: np.dtype[Any]
    arrays: Mapping[str, Sequence[Any]]
    numbers: Mapping[str, Sequence[int] | int]

    def filled(self, address: Callable[[Any], int]) -> npt.NDArray[Any]:
        """See `Struct.filled`."""
        struct = np.zeros(1, self.layout)
        for field, arrays in self.arrays.items():
            known = [0 if array is None else address(array) for array in arrays]
            struct[field][0, : len(known)] = known
        for field, numbers in self.numbers.items():
            if isinstance(numbers, int):
                struct[field] = numbers
            else:
                struct[field][0, : len(numbers)] = numbers
        return struct


class Launch(NamedTuple):
    """A launch, as `Device.launch` takes it."""

    source: str
    name: str
    blocks: int
    arguments: tuple[Argument, ...]


class Device(Protocol):
    """Where kernels run."""

    @property
    def processors(self) -> int:
        """Number of multiprocessors."""
        ...

    def launch(self, source: str, name: str, blocks: int, arguments: tuple[Argument, ...]) -> None:
        """Start a kernel on the current stream.

        Args:
            source: Name of the ``.cu`` file, without the ending.
            name: Of the kernel.
            blocks: Of `CTA` threads each.
            arguments: In the order of the kernel's parameters.
        """
        ...

    def empty(self, elems: int, dtype: npt.DTypeLike) -> Any:
        """Return memory for a kernel's own use, with whatever it holds; it may be let go at once.

        What is freed is given out again in the order of the stream.
        """
        ...

    def read(self, array: Any) -> int:
        """Wait for the current stream, and return the first of an array of integers."""
        ...

    def graph(self, launches: Sequence[Launch]) -> Callable[[], object] | None:
        """Capture launches, whose kernels have all been launched before.

        Returns:
            What starts all of them, in order, on the current stream of whoever calls it, with the
            numbers and addresses that they have now; None if that can not be had.
        """
        ...


def source_text(source: str) -> str:
    """Return a ``.cu`` file with what it includes in the place of the includes, each once."""
    seen: set[str] = set()

    def expand(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = (HOME / name).read_text(encoding="utf-8").replace("#pragma once\n", "")
        return re.sub(r'#include "(.+)"\n', lambda found: expand(found[1]), text)

    return expand(f"{source}.cu")


_chosen: list[Device] = []


class _Thread(threading.local):
    """A thread's: an attribute that is always there is found sooner."""

    notes: Device | None = None


_thread = _Thread()


def device() -> Device:
    """Return where kernels run now: on the current GPU.

    Raises:
        KernelUnavailable: There is none that can be used; the message names the fix.
    """
    if _thread.notes is not None:
        return _thread.notes
    if _chosen:
        return _chosen[-1]
    return _gpus[0]()


_gpus: list[Callable[[], Device]] = []


def found_by(current: Callable[[], Device]) -> None:
    """Name what returns the current GPU, once for the process."""
    _gpus.append(current)


@contextmanager
def running_on(other: Device) -> Iterator[None]:
    """Have kernels run elsewhere for a while: tests do, on machines without a GPU."""
    _chosen.append(other)
    try:
        yield
    finally:
        _chosen.pop()


@contextmanager
def noted_by(notes: Device) -> Iterator[None]:
    """Have another device take what this thread launches for a while."""
    before, _thread.notes = _thread.notes, notes
    try:
        yield
    finally:
        _thread.notes = before


def launch(source: str, name: str, teams: int, threads: int, *arguments: Argument) -> None:
    """Start a kernel whose teams of so many threads share the work, as many as there is work for.

    Args:
        source: Name of the ``.cu`` file, without the ending.
        name: Of the kernel.
        teams: How many could work side by side; without any, nothing is started.
        threads: Of a team.
        arguments: See `Device.launch`.
    """
    if teams:
        where = device()
        blocks = min(-(-teams * threads // CTA), _WAVES * where.processors)
        where.launch(source, name, blocks, arguments)
