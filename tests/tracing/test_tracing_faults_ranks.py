"""Breakdowns of real ranks: they are the step to 5 %, and a fault is found where it was put in.

What a fault costs is long beside what else a busy machine may do to a step.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _ranks import Group, settings
from _training import registered
from torch import nn

from compressa.collectives.base import Compute
from compressa.engine.communication import Communication
from compressa.tracing.breakdown import Breakdown
from compressa.tracing.reader import read
from compressa.tracing.summary import Summary, summarise

pytestmark = [pytest.mark.ranks, pytest.mark.alone]

STEPS = 6
LATE_S = 0.15
SLEEP_S = 0.05
NOT_ACCOUNTED_FOR = 0.05


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    """A thread keeps the interpreter's lock as long as it may."""
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """All threads of all ranks share a core."""
    cores = os.sched_getaffinity(0)
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(cores)})
        yield
    finally:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)


@contextlib.contextmanager
def sleeping_codec() -> Iterator[None]:
    """To encode a unit takes longer, and no core."""
    work = Communication._work

    def slow(self: Communication, task: Any, operation: Compute) -> Any:
        def encode() -> Any:
            time.sleep(SLEEP_S)
            return operation.work()

        encodes = operation.stage == "encode"
        return work(self, task, replace(operation, work=encode) if encodes else operation)

    with mock.patch.object(Communication, "_work", slow):
        yield


FAULTS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "": contextlib.nullcontext,
    "spins": spinning,
    "one core": on_one_core,
    "codec": sleeping_codec,
}


def profiled(*, path: str, fault: str = "", late: bool = False) -> None:
    """Trace some steps of training with a fault; `late`: rank 1 sleeps before its gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    inputs = torch.randn(256, 256)
    config = settings("int8", dense_below={"elems": 1}, integrity={"every": 0})
    config["exchange"] |= {"unit_bytes": 1 << 20, "chunk_bytes": 1 << 16, "credit_bytes": 1 << 17}
    with registered(net, config) as (wrapped, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

        def train(steps: int) -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                loss = wrapped(inputs).square().mean()
                if late and dist.get_rank() == 1:
                    time.sleep(LATE_S)
                loss.backward()
                optimizer.step()

        train(2)
        with FAULTS[fault](), handle.trace(path):
            train(STEPS)


def summaries(group: Group, tmp_path: Path, **options: Any) -> list[Summary]:
    """What the ranks' traces amount to; on both of them all but 5 % is accounted for."""
    group.run(profiled, path=str(tmp_path / "t.json"), **options)
    found = [summarise(read(tmp_path / f"t-rank{rank}.json")) for rank in (0, 1)]
    for summary in found:
        assert len(summary.steps) == STEPS
        assert summary.training_known
        for _, figures in (*summary.steps, (-1, summary.total)):
            assert figures.breakdown.seconds == pytest.approx(figures.seconds, rel=1e-9)
        assert summary.total.breakdown.unknown_s < NOT_ACCOUNTED_FOR * summary.total.seconds
    return found


def of(summary: Summary) -> Breakdown:
    """Its mean step's."""
    whole = summary.total.breakdown
    return Breakdown(**{name: seconds / STEPS for name, seconds in vars(whole).items()})


def test_computing_and_what_is_waited_for_are_the_step(two: Group, tmp_path: Path) -> None:
    untold = [untold_share(two, tmp_path) for _ in range(3)]  # a machine that swaps has own waits
    assert min(untold) < NOT_ACCOUNTED_FOR, untold


def untold_share(two: Group, tmp_path: Path) -> float:
    """The largest share of a rank's step that is put down to nothing, where cores are known."""
    found = [0.0]
    for summary in summaries(two, tmp_path):
        step = of(summary)
        assert step.compute_s > 0
        assert step.calls_s > 0
        if summary.cores_known:  # else what a core is waited for is not told from own waits
            found.append((step.unknown_s + step.elsewhere_s) / step.seconds)
    return max(found)


def test_a_rank_that_comes_late_is_waited_for_as_a_peer(two: Group, tmp_path: Path) -> None:
    early, late = map(of, summaries(two, tmp_path, late=True))
    assert early.peers_s > LATE_S / 2, early
    assert early.peers_s > 3 * max(early.wire_s, early.carried_s, early.codec_s, early.queued_s)
    # To the one that sleeps it is a wait of its own, in which it needs neither core nor lock.
    assert late.elsewhere_s > 0.8 * LATE_S, late


def test_a_thread_that_keeps_the_lock_is_waited_for(two: Group, tmp_path: Path) -> None:
    # Ranks wait for each other, so it need not show on both; without the fault it is below 0.01.
    steps = list(map(of, summaries(two, tmp_path, fault="spins")))
    assert max(step.lock_s / step.seconds for step in steps) > 0.15, steps


@pytest.mark.skipif(sys.platform != "linux", reason="threads cannot be put on a core")
def test_a_core_that_the_ranks_share_is_waited_for(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    for summary in summaries(fresh(2), tmp_path, fault="one core"):
        if not summary.cores_known:
            pytest.skip("this kernel keeps no figures of its run queue")
        step = of(summary)
        assert step.core_s > 0.25 * step.seconds, step


def test_a_codec_that_sleeps_is_waited_for(two: Group, tmp_path: Path) -> None:
    for step in map(of, summaries(two, tmp_path, fault="codec")):
        assert step.codec_s > 0.8 * SLEEP_S, step
        assert step.lock_s < step.codec_s / 2
