"""The training tasks by name. A new one takes its file and one line in :data:`TASKS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from lab.tasks.char_gpt import CharGPT
from lab.tasks.digits import Digits, Perceptron
from lab.tasks.task import Batch, Task

TASKS: dict[str, Callable[[], Task]] = {
    "digits": Digits,
    "mlp": partial(Digits, Perceptron, name="mlp", batch=32, learning_rate=0.1),
    "gpt-demo": partial(CharGPT, "demo"),
    "gpt-full": partial(CharGPT, "full"),
}


@cache
def load_task(name: str) -> Task:
    """The task of that name; its data are read on first use and kept.

    Raises:
        KeyError: If no task has that name; the message lists those that exist.
    """
    if name not in TASKS:
        raise KeyError(f"no task is called {name!r}; there are: {', '.join(sorted(TASKS))}")
    return TASKS[name]()


__all__ = ["TASKS", "Batch", "Task", "load_task"]
