"""The lock probe: it finds a thread that keeps the lock, and none where threads only compute."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from compressa.engine.measuring import lock_probe
from compressa.engine.measuring.lock_probe import LockProbe, blocked_for
from compressa.tracing import Reading, Tracer
from compressa.tracing.intervals import Intervals
from compressa.tracing.reader import read


def taken_of(tmp_path: Path, seconds: float, holder: bool) -> float:
    """Return the share of some time in which the lock was found taken."""
    tracer = Tracer(0, 1)
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=hold)
    with tracer.start(tmp_path / "t.json"):
        tracer.begin_step(0)
        LockProbe(tracer)
        began_s = time.perf_counter()
        if holder:
            thread.start()
        time.sleep(seconds)
        over.set()
        seconds = time.perf_counter() - began_s
    if holder:
        thread.join()
    trace = read(tmp_path / "t-rank0.json")
    spans = [span for span in trace.spans if span.stage == "lock"]
    assert {span.step for span in spans} <= {0}
    taken = Intervals((span.started_s, span.ended_s) for span in spans)
    return taken.within(trace.steps[0][1], trace.ended_s) / seconds


@pytest.mark.alone
def test_a_thread_that_keeps_the_lock_is_found_and_sleep_is_not(tmp_path: Path) -> None:
    asleep = taken_of(tmp_path, 0.4, holder=False)
    assert asleep < 0.2
    assert taken_of(tmp_path, 0.4, holder=True) > max(0.1, 2 * asleep)


def test_it_ends_with_the_trace(tmp_path: Path) -> None:
    tracer = Tracer(0, 1)
    before = set(threading.enumerate())
    with tracer.start(tmp_path / "t.json"):
        tracer.begin_step(0)
        LockProbe(tracer)
        (probe,) = set(threading.enumerate()) - before
        assert probe.daemon
    probe.join(10)
    assert not probe.is_alive()


PAUSE_S = lock_probe._PAUSE_S


@pytest.mark.parametrize(
    ("core_s", "runs", "due_s"),
    [
        (0.0, 3, 0.005),  # it was woken, and stopped again until it had the lock
        (0.002, 3, 0.003),  # for some of that it had no core
        (0.0, 1, 0.0),  # it was woken late, and went on at once
        (None, 0, 0.005),  # nobody knows: a core, or the lock
    ],
)
def test_the_time_for_which_it_is_blocked_is_not_that_without_a_core(
    core_s: float | None, runs: int, due_s: float
) -> None:
    before = Reading(1.0, 0.5, None if core_s is None else 7.0, 20)
    after = Reading(1.0 + PAUSE_S + 0.005, 0.5, None if core_s is None else 7.0 + core_s, 20 + runs)
    assert blocked_for(before, after) == pytest.approx(due_s, abs=1e-9)
