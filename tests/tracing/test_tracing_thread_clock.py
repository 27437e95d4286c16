"""Clocks of threads: time on a core, time without one, and what is said where nobody knows."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from compressa.tracing import Reading, ThreadClock, spent
from compressa.tracing import thread_clock as module


def compute(seconds: float) -> None:
    """Take so much time on a core."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def test_it_tells_what_the_thread_computes_and_not_how_long_it_sleeps() -> None:
    clock = ThreadClock()
    before = clock.read()
    compute(0.02)
    time.sleep(0.05)
    after = clock.read()
    cpu_s, core_s = spent(before, after)
    assert cpu_s is not None
    assert 0.02 <= cpu_s < 0.045
    if core_s is not None:
        assert cpu_s + core_s <= after.at_s - before.at_s + 1e-3


def test_another_thread_may_read_it() -> None:
    clock = ThreadClock()
    readings: list[Reading] = []
    before = clock.read()
    compute(0.01)
    thread = threading.Thread(target=lambda: readings.append(clock.read()))
    thread.start()
    thread.join()
    cpu_s = spent(before, readings[0]).cpu_s
    assert cpu_s is None or cpu_s >= 0.01


CROWDED = """
import os, time
from compressa.tracing import ThreadClock, spent
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
child = os.fork()
if not child:
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s and os.getppid() != 1:
        pass
    os._exit(0)
try:
    clock = ThreadClock()
    before = clock.read()
    until_s = time.thread_time() + 0.1
    while time.thread_time() < until_s:
        pass
    after = clock.read()
    print(spent(before, after).core_s, after.at_s - before.at_s)
finally:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there are other figures elsewhere, or none")
def test_a_core_that_is_shared_with_another_process_is_waited_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=60, check=True
    )
    core, wall = done.stdout.split()
    if core == "None":
        pytest.skip("this kernel keeps no figures of its run queue")
    assert 0.25 * float(wall) < float(core) < float(wall)


@pytest.mark.parametrize("figures", [b"0 0 0\n", b"", b"rubbish\n", None])
def test_a_system_that_keeps_no_figures_is_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, figures: bytes | None
) -> None:
    file = tmp_path_factory.mktemp("proc") / "schedstat"
    if figures is not None:
        file.write_bytes(figures)
    opened = os.open

    def open_instead(path: Any, flags: int, *rest: Any) -> int:
        return opened(file if str(path).startswith("/proc/self/task") else path, flags, *rest)

    monkeypatch.setattr(module.os, "open", open_instead)
    clock = ThreadClock()
    before = clock.read()
    compute(1e-3)
    assert spent(before, clock.read()).core_s is None
    assert spent(before, clock.read()).cpu_s is not None


def test_it_lets_go_of_its_file() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0

    before = count()
    for _ in range(20):
        ThreadClock().read()
    assert count() <= before + 1


def test_reading_it_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ThreadClock()

    def fails(*_: Any, **__: Any) -> Any:
        raise AssertionError("a file is opened")

    monkeypatch.setattr(module.os, "open", fails)
    monkeypatch.setattr(builtins, "open", fails)
    clock.read()
