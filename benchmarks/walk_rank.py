"""What a rank of `python -m benchmarks walk` can be asked for: the walk of a gradient, and times.

A model of one parameter is trained, int8 over TCP: one unit, one message each way. Of the steps
that are looked at, the one of the fewest calls counts, and the one of the fewest changes of thread:
on a busy machine a thread that waits for another looks meanwhile what else there is to do, and
threads take turns that have nothing to tell each other. Times are those of an engine of its own,
whose threads nobody looks at.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

import compressa.kernels
import compressa.schedulers
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.hooks import Handle, register_comm_hook
from harness.wire import Wire

_CONFIG = {"compressor": "int8", "exchange": {"transport": "tcp"}}
_WARM_STEPS, _STEPS, _TIMED_STEPS = 5, 25, 200
_REST_S = 0.02  # for threads to come to rest after a step
_ROOTS = tuple(
    f"{Path(str(package.__file__)).parent}{os.sep}"
    for package in (compressa, compressa.kernels, compressa.schedulers)
)


@dataclass(frozen=True)
class Walk:
    """The calls of one step, in their order.

    Attributes:
        calls: Of each, the thread and what was called.
    """

    calls: Sequence[tuple[int, CodeType]]

    @property
    def own(self) -> int:
        """Calls of functions of the library."""
        return sum(_is_own(code) for _, code in self.calls)

    @property
    def changes(self) -> int:
        """How often a call comes from another thread than the one before it."""
        return sum(one != other for (one, _), (other, _) in pairwise(self.calls))

    @property
    def own_files(self) -> int:
        """In how many files of the library they are."""
        return len({code.co_filename for _, code in self.calls if _is_own(code)})

    @property
    def functions(self) -> Counter[str]:
        """Calls by file and function."""
        return Counter(f"{_file_of(code)}: {code.co_qualname}" for _, code in self.calls)


class Recorder:
    """Notes the calls of the thread that makes it, and of all threads that start afterwards."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, CodeType]] | None = None
        self._training = threading.get_ident()
        self._depth = 0  # of the training thread, from the library's first function on

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have it look meanwhile; threads of now are looked at until they end."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def walk(self, step: Callable[[], object]) -> Walk:
        """Note the calls of one step."""
        calls: list[tuple[int, CodeType]] = []
        self._calls = calls
        step()
        time.sleep(_REST_S)
        self._calls = None
        return Walk(calls)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        calls = self._calls
        if calls is None or event not in ("call", "return"):
            return
        thread, code, call = threading.get_ident(), frame.f_code, event == "call"
        if thread == self._training:
            if not (self._depth or (call and _is_own(code))):
                return
            self._depth += 1 if call else -1
        if call:
            calls.append((thread, code))


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(_ROOTS)


def _file_of(code: CodeType) -> str:
    file = code.co_filename
    for root in _ROOTS:
        if file.startswith(root):
            return str(Path(file).relative_to(Path(root).parent))
    return f"({Path(file).name})"


def trained(elems: int) -> tuple[Callable[[], None], Handle]:
    """Return what trains a step of one parameter of so many elements, and the hook's handle.

    Raises:
        CompressaError: As `register_comm_hook`.
    """
    model = DistributedDataParallel(nn.Linear(elems // 16, 16, bias=False))
    handle = register_comm_hook(model, _CONFIG)
    inputs = torch.randn(1, elems // 16)

    def step() -> None:
        model.zero_grad()
        model(inputs).square().sum().backward()

    return step, handle


def walked(elems: int) -> tuple[Walk, int]:
    """Return the shortest walk of some steps, and the fewest changes of thread. Collective.

    Args:
        elems: Of the only parameter, a multiple of 16.
    """
    recorder = Recorder()
    with recorder.installed():
        step, handle = trained(elems)
        for _ in range(_WARM_STEPS):
            step()
        walks = []
        for _ in range(_STEPS):
            dist.barrier()
            walks.append(recorder.walk(step))
        handle.close()
    shortest = min(walks, key=lambda walk: len(walk.calls))
    return shortest, min(walk.changes for walk in walks)


def timed(elems: int) -> tuple[float, float]:
    """Return the median seconds of a step, and those of the processor. Collective."""
    step, handle = trained(elems)
    for _ in range(_WARM_STEPS):
        step()
    wall, cpu_s = [], time.process_time()
    for _ in range(_TIMED_STEPS):
        started_s = time.perf_counter()
        step()
        wall.append(time.perf_counter() - started_s)
    cpu_s = time.process_time() - cpu_s
    handle.close()
    return median(wall), cpu_s / _TIMED_STEPS


class Walking:
    """What a rank can be asked for; see `harness.rank`."""

    def __init__(self, wire: Wire) -> None:
        pass

    def walk(self, elems: int) -> dict[str, Any]:
        """Tell the figures of a `benchmarks.walk.Row`, and the calls by file and function."""
        step_s, cpu_s = timed(elems)
        walk, changes = walked(elems)
        return {
            "own": walk.own,
            "files": walk.own_files,
            "changes": changes,
            "step_s": step_s,
            "cpu_s": cpu_s,
            "functions": dict(walk.functions.most_common()),
        }
