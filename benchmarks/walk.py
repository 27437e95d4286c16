"""The walk of a gradient: the Python calls of one step, the files they are in, and the threads.

    torchrun --nproc-per-node 2 -m benchmarks.walk
    torchrun --nproc-per-node 2 -m benchmarks.walk --functions --elems 4096

A model of one parameter is trained, int8 over TCP: one unit, one message each way. Of the steps
that are looked at, the one with the fewest changes of thread is shown, on rank 0: a busy machine
has threads take turns that have nothing to tell each other.

- *calls*: how often a Python function began, or a generator went on; those in files of compressa,
  kernels and schedulers, and all. On the training thread, what the library's functions call counts,
  and not what DDP does besides; on every other thread, all.
- *files*: in how many of these files they are.
- *changes*: how often a call comes from another thread than the call before it.

Times are those of an engine of its own, whose threads nobody looks at.
"""

from __future__ import annotations

import argparse
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

import compressa.kernels
import compressa.schedulers
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa
from benchmarks.paired import Trained, report
from compressa.hooks import register_comm_hook

ELEMS = (1 << 12, 1 << 16, 1 << 20)
"""Of the parameter: messages of 4 KiB, of 64 KiB and of 1 MiB."""

_CONFIG = {"compressor": "int8", "exchange": {"transport": "tcp"}}
_WARM_STEPS, _STEPS, _TIMED_STEPS = 5, 9, 200
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
    def files(self) -> Counter[str]:
        """Calls by file of the library, from its root; of all others, by module's file name."""
        return Counter(_place(code) for _, code in self.calls)

    @property
    def own_files(self) -> int:
        """In how many files of the library they are."""
        return len({code.co_filename for _, code in self.calls if _is_own(code)})

    @property
    def functions(self) -> Counter[str]:
        """Calls by file and function."""
        return Counter(f"{_place(code)}: {code.co_qualname}" for _, code in self.calls)


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


def _place(code: CodeType) -> str:
    file = code.co_filename
    for root in _ROOTS:
        if file.startswith(root):
            return str(Path(file).relative_to(Path(root).parent))
    return f"({Path(file).name})"


def trained(elems: int) -> Trained:
    """Return a model of one parameter of so many elements, with a hook.

    Raises:
        CompressaError: As `register_comm_hook`.
    """
    model = DistributedDataParallel(nn.Linear(elems // 16, 16, bias=False))
    handle = register_comm_hook(model, _CONFIG)
    inputs = torch.randn(1, elems // 16)

    def step() -> None:
        model.zero_grad()
        model(inputs).square().sum().backward()

    return Trained(step, handle)


def walked(elems: int) -> Walk:
    """Return the walk of a step in which no thread was disturbed by another. Collective.

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
    return min(walks, key=lambda walk: (walk.changes, len(walk.calls)))


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


def lines(sizes: Sequence[int], *, functions: bool) -> Iterator[str]:
    """Measure a step of each size, and say what was found; of the last, what was called."""
    for elems in sizes:
        wall_s, cpu_s = timed(elems)
        walk = walked(elems)
        yield (
            f"{4 * elems} bytes of gradient: {len(walk.calls)} calls, {walk.own} of the library's "
            f"in {walk.own_files} files, {walk.changes} changes of thread; step "
            f"{1e6 * wall_s:.0f} us, of the processor {1e6 * cpu_s:.0f} us"
        )
    for name, calls in (walk.functions if functions else walk.files).most_common():
        yield f"{calls:6}  {name}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", action="store_true", help="show calls by function")
    parser.add_argument("--elems", type=int, nargs="+", default=ELEMS, help="of the parameter")
    given = parser.parse_args()
    report(lines(given.elems, functions=given.functions))
