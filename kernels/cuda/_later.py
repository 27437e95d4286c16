"""Numbers that kernels find out for Python, and checks whose answers come later.

Outside of `answers_later` a check waits for the GPU and tells what it has found. Within, it is
started, and all is taken to be well: whether any of them has found a fault is one number, which
whoever made it reads when the GPU has come so far. By then the kernels that come after the check
have run, on whatever arrived: so each of them keeps to its arrays, whatever the indices are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ._device import CTA, Argument, device, launch

MakeAnswer = Callable[[], Any]
"""Makes a number on the GPU, a cleared u64[1], which checks set to 1 where there is a fault."""


class _Answer:
    """The number that the checks of a while share, made for the first of them."""

    def __init__(self, make: MakeAnswer) -> None:
        self._make = make
        self._made: Any = None

    def get(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made


class _Current(threading.local):
    """A thread's: an attribute that is always there is found sooner."""

    answer: _Answer | None = None
    state: Any = None


_current = _Current()


@contextmanager
def answers_later(make: MakeAnswer) -> Iterator[None]:
    """Have no check of this thread wait for the GPU for a while.

    Args:
        make: Called at the first check, if there is any.
    """
    before, _current.answer = _current.answer, _Answer(make)
    try:
        yield
    finally:
        _current.answer = before


def answers_come_later() -> bool:
    """Whether checks of this thread wait for nothing now."""
    return _current.answer is not None


@contextmanager
def count_left_in(state: Any) -> Iterator[None]:
    """Have the selection that this thread starts leave its count on the GPU, and return 0.

    Args:
        state: u64[`STATE_WORDS`], where it keeps what it knows; the count is the first.
    """
    before, _current.state = _current.state, state
    try:
        yield
    finally:
        _current.state = before


def state_of_caller() -> Any:
    """Return the memory in which a selection leaves its count; None if that is waited for."""
    return _current.state


def new_answer(source: str) -> Any:
    """Return memory for a number that a source's kernels find out, cleared; see `Device.read`."""
    answer = device().empty(1, np.uint64)
    launch(source, "clear_answer", 1, CTA, answer)
    return answer


def ask(source: str, name: str, teams: int, threads: int, *arguments: Argument) -> int:
    """Start a kernel whose last parameter is ``u64* answer``, and return what it finds.

    Args:
        source: See `launch`.
        name: See `launch`.
        teams: See `launch`.
        threads: See `launch`.
        arguments: All but the answer.
    """
    answer = new_answer(source)
    launch(source, name, teams, threads, *arguments, answer)
    return device().read(answer)


def find_fault(source: str, name: str, teams: int, threads: int, *arguments: Argument) -> bool:
    """Start a check; return whether it has found a fault, or False if that is known later only.

    Args:
        source: See `launch`.
        name: Of a kernel whose last parameter is ``u64* answer``, which it only ever sets.
        teams: See `launch`.
        threads: See `launch`.
        arguments: All but the answer.
    """
    answer = _current.answer
    if answer is None:
        return bool(teams and ask(source, name, teams, threads, *arguments))
    if teams:
        launch(source, name, teams, threads, *arguments, answer.get())
    return False
