"""Recording: what some calls launch, noted once, and launched whenever it is asked for.

What a unit launches is the same in every step as long as no array moves. So the Python that works
it out runs once, and what several vectors launch of one kernel goes by one launch (`_many.py`).
Within `graphs`, all of it is a CUDA graph from the third time on. The memory that the calls have
asked for stays with it.

A check within it tells what it has found in a number of its own, which is passed on to whoever
waits for checks when it is launched (`_later.py`).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from ._device import CTA, Argument, Device, Launch, device, noted_by
from ._later import answers_later, find_fault, new_answer
from ._many import merged

Call = Callable[[], object]

_SEEN = 2  # times that it is launched before it is captured: what comes once is not worth it


class _Current(threading.local):
    """A thread's."""

    graphs = False


_current = _Current()


@contextmanager
def graphs() -> Iterator[None]:
    """Have what this thread starts again and again be captured as CUDA graphs for a while."""
    before, _current.graphs = _current.graphs, True
    try:
        yield
    finally:
        _current.graphs = before


class _Notes:
    """Takes notes in place of a device, whose memory it gives out."""

    def __init__(self, real: Device) -> None:
        self.processors = real.processors
        self.launches: list[Launch] = []
        self._real = real

    def launch(self, source: str, name: str, blocks: int, arguments: tuple[Argument, ...]) -> None:
        """See `Device.launch`."""
        self.launches.append(Launch(source, name, blocks, arguments))

    def empty(self, elems: int, dtype: npt.DTypeLike) -> Any:
        """See `Device.empty`; whoever holds the launches holds the memory."""
        return self._real.empty(elems, dtype)

    def read(self, array: Any) -> int:
        """See `Device.read`."""
        raise RuntimeError("what waits for the GPU can not be recorded")

    def graph(self, launches: Sequence[Launch]) -> None:
        """See `Device.graph`."""


class Recording:
    """What calls launch.

    Args:
        phases: The calls, which launch kernels and do nothing else. Those of a phase do not depend
            on each other, and come after all of the last phase.

    Raises:
        RuntimeError: One of them waits for the GPU.
    """

    def __init__(self, phases: Sequence[Sequence[Call]]) -> None:
        self._device = device()
        self._found: Any = None
        self._graph: Call | None = None
        self._starts = 0
        self._launches = [each for calls in phases for each in _side_by_side(self._noted(calls))]

    def start(self) -> bool:
        """Launch all on the current stream.

        Returns:
            Whether no check has found a fault; True, too, if that is known later only.
        """
        graph = self._captured() if _current.graphs else None
        if graph is not None:
            graph()
        else:
            for each in self._launches:
                self._device.launch(*each)
        found = self._found
        return found is None or not find_fault("bitpack", "pass_answer", 1, CTA, found)

    def _captured(self) -> Call | None:
        """What starts all by one call; None if they are launched one by one."""
        self._starts += 1
        if self._graph is None and self._starts > _SEEN and len(self._launches) > 1:
            self._graph = self._device.graph(self._launches)
        return self._graph

    def _noted(self, calls: Sequence[Call]) -> list[list[Launch]]:
        chains = []
        for call in calls:
            notes = _Notes(self._device)
            with answers_later(self._own_answer), noted_by(notes):
                call()
            chains.append(notes.launches)
        return chains

    def _own_answer(self) -> Any:
        """A number that is cleared now, and again whenever it is passed on."""
        if self._found is None:
            with noted_by(self._device):
                self._found = new_answer("bitpack")
        return self._found


def _side_by_side(chains: Sequence[Sequence[Launch]]) -> Iterator[Launch]:
    """Put the launches of calls together; each call's own stay in order."""
    left = [deque(chain) for chain in chains if chain]
    while left:
        heads = Counter((chain[0].source, chain[0].name) for chain in left)
        kernel, _ = heads.most_common(1)[0]
        yield from merged([c.popleft() for c in left if (c[0].source, c[0].name) == kernel])
        left = [chain for chain in left if chain]
