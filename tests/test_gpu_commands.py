"""Commands of `make gpu` keep to their limits, and none takes the time of another."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_commands
import pytest
from gpu_commands import LATE, alone, said, side_by_side

SLEEPS = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
QUICK = [sys.executable, "-c", "print('here', flush=True)"]
DEAF = """
import signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
child += "print('deaf', flush=True); time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", child])
print(process.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A program that a script starts in the background ignores SIGINT, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_commands_are_ended_at_their_limit_and_heard_until_then() -> None:
    assert said(QUICK, 60) == {"code": 0, "output": "here\n"}
    done = said(SLEEPS, 3)
    assert done["code"] == LATE
    assert "begun" in done["output"]
    assert "ended after 3 s" in done["output"]


def test_what_has_no_time_is_not_begun(tmp_path: Path) -> None:
    file = tmp_path / "begun"
    done = said(["touch", str(file)], 0.0)
    assert done == {"code": LATE, "output": "not begun"}
    assert not file.exists()


def runs(process: int) -> bool:
    """Whether a process has not ended; whoever adopts it may be slow to take note."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"
    except OSError:
        return False


def test_what_a_command_has_started_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_commands, "GRACE_S", 1.0)
    begun_s = time.monotonic()
    done = said([sys.executable, "-c", DEAF], 5)
    assert time.monotonic() - begun_s < 30, "it was waited for the child, which holds the pipe"
    child = int(done["output"].split()[0])
    assert "deaf" in done["output"]
    until_s = time.monotonic() + 20
    while runs(child) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not runs(child)


@pytest.mark.parametrize("first", ["quick", "slow"])
def test_of_commands_none_takes_the_time_of_those_after_it(
    first: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A clock that goes on by what commands take: those that are slow take all that they may."""
    now_s, limits_s = 100.0, list[float]()

    def taken(command: list[str], limit_s: float, *_: Any, **__: Any) -> gpu_commands.State:
        nonlocal now_s
        limits_s.append(limit_s)
        slow = command == SLEEPS
        now_s += limit_s if slow else 1.0
        return {"code": LATE if slow else 0, "output": ""}

    monkeypatch.setattr(gpu_commands, "said", taken)
    monkeypatch.setattr(gpu_commands.time, "monotonic", lambda: now_s)
    commands = {"one": QUICK if first == "quick" else SLEEPS, "two": SLEEPS, "three": QUICK}
    *_, state = alone(commands, 30.0, tmp_path)
    assert limits_s == ([10.0, 14.5, 14.5] if first == "quick" else [10.0, 10.0, 10.0])
    assert state["code"] == LATE
    assert state["not_reached"] == (["two"] if first == "quick" else ["one", "two"])


def test_a_crash_is_no_success(tmp_path: Path) -> None:
    crash = [sys.executable, "-c", "import os; os.abort()"]
    *_, state = alone({"one": crash, "two": QUICK}, 30.0, tmp_path)
    assert state["code"] == 128 + signal.SIGABRT
    ((_, done),) = side_by_side([crash], 30.0, tmp_path)
    assert done["code"] == 128 + signal.SIGABRT


def test_an_interrupt_ends_all_that_go_side_by_side(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    running = side_by_side([SLEEPS, QUICK, SLEEPS], 60, tmp_path)
    number, done = next(running)
    assert (number, done["output"]) == (1, "here\n")
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt)
    assert time.monotonic() - begun_s < 50
