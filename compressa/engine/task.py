"""Task: one program under way, and where a device works for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from compressa.collectives.base import Operation, Program
from compressa.engine.device_stream import DeviceStream, Mark
from compressa.transports.base import Key

Finished = Callable[[BaseException | None], None]
_HERE = nullcontext()


@dataclass(eq=False)
class Task:
    """One program under way.

    Attributes:
        unit: Unit that it serves.
        name: The unit's name, for people.
        step: Optimizer step.
        program: The generator.
        finished: Called once, with None or the error.
        stage: Number of the next exchange.
        stride: By how much the number after that is larger: programs side by side take turns.
        awaited: The exchange that it waits for, or that it waited for last; None before the first.
        deadline_from_s: From when on that is given until the deadline; None if it is over.
        idle_since_s: When its last operation ended, and so it began to wait for the next.
        ahead: Whether it works `DeviceStream.ahead`: until its first exchange has come, if at all.
        left: What the device had been given then, when its last exchange was launched.
        waits: Whether what it computes on a GPU may wait for it.
    """

    unit: int
    name: str
    step: int
    program: Program[None]
    finished: Finished
    stage: int = 0
    stride: int = 1
    awaited: Operation | None = None
    deadline_from_s: float | None = None
    idle_since_s: float = 0.0
    ahead: bool = True
    left: Mark = None
    waits: bool = True

    @property
    def key(self) -> Key:
        """Name of the exchange that it waits for, or is about to ask for."""
        return Key(self.step, self.unit, self.stage)


def at(device_stream: DeviceStream, task: Task) -> AbstractContextManager[Any]:
    """Return a context in which what the caller's thread does for a task is done where it is due.

    Args:
        device_stream: Its main stream is the thread's current one.
        task: Done ahead or not.
    """
    return device_stream.ahead() if task.ahead else _HERE


def described(task: Task) -> str:
    """Return where a task is, for people."""
    return f"stage {task.stage} of unit {task.unit} ({task.name}), step {task.step}"
