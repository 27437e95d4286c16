"""Commands that `tests/gpu.py` runs: each within a limit, and what they say is kept.

A command that is told to end takes all that it has started with it, so that nothing which goes on
takes the time, or the memory of the GPU, of what comes next.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any

State = dict[str, Any]
Process = subprocess.Popen[bytes]
ROOT = Path(__file__).resolve().parents[1]
LATE = 124
"""The code of what has not ended in time, or was not begun."""

GRACE_S = 20.0  # for what is told to end
PROCESSES = 8


def alone(
    commands: Mapping[str, list[str]], limit_s: float, folder: Path, **environment: str
) -> Iterator[State]:
    """Run commands one after another within a limit; yield what they said so far.

    Each has an equal share of what is left: none takes the time of those that come after it.

    Args:
        commands: By name; names of those that were not done in time are listed.
        limit_s: For all of them.
        folder: Where they run.
        environment: Of theirs, beside this process's own.
    """
    end_s, state = time.monotonic() + limit_s, State(code=0, said=[], not_reached=list(commands))
    for number, (name, command) in enumerate(commands.items()):
        share_s = (end_s - time.monotonic()) / (len(commands) - number)
        done = said(command, share_s, folder, environment=environment)
        state["code"] = max(state["code"], done["code"])
        state["said"].append(done["output"][-2000:])
        if done["code"] != LATE:
            state["not_reached"].remove(name)
        yield state


def side_by_side(
    commands: list[list[str]], limit_s: float, folder: Path, *, heard: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run commands, several at a time, all within a limit; yield each one's number and words."""
    end_s, processes = time.monotonic() + limit_s, list[Process]()

    def one(command: list[str]) -> dict[str, Any]:
        left_s = end_s - time.monotonic()
        return said(command, left_s, folder, heard=heard, begun=processes.append)

    with ThreadPoolExecutor(PROCESSES) as pool:
        numbers = {pool.submit(one, command): number for number, command in enumerate(commands)}
        try:
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except BaseException:  # an interrupt comes to this thread alone
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                if process.poll() is None:
                    _tell(process, signal.SIGINT)
            raise


def said(
    command: list[str],
    limit_s: float,
    folder: Path = ROOT,
    *,
    heard: bool = True,
    environment: Mapping[str, str] = MappingProxyType({}),
    begun: Callable[[Process], object] = lambda process: None,
) -> dict[str, Any]:
    """Run a command in a folder for so long at most; return its code and what it says.

    Args:
        command: Not begun if no time is left.
        limit_s: It is told to end then.
        folder: Where it runs.
        heard: Whether to show what it says.
        environment: Beside this process's own.
        begun: Is told the process.
    """
    if limit_s <= 0:
        return {"code": LATE, "output": "not begun"}
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
        process_group=0,  # a sanitizer's own child is told, too
    ) as process:
        begun(process)
        try:
            output, ended = process.communicate(timeout=limit_s)[0], ""
        except subprocess.TimeoutExpired:
            _tell(process, signal.SIGINT)  # it says what it knows, and ends its own processes
            ended = f"\nended after {limit_s:.0f} s"
            try:
                output = process.communicate(timeout=GRACE_S)[0]
            except subprocess.TimeoutExpired:
                _tell(process, signal.SIGKILL)
                output = process.communicate()[0]
        except BaseException:
            _tell(process, signal.SIGINT)
            raise
    text = output.decode(errors="replace") + ended
    if heard:
        print(text, flush=True)
    return {"code": LATE if ended else _code(process.returncode), "output": text}


def _code(returned: int) -> int:
    """As a shell tells it: of what a signal has ended, 128 more than that."""
    return returned if returned >= 0 else 128 - returned


def _tell(process: Process, number: signal.Signals) -> None:
    """Send a signal to a command and to what it has started, which may outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
