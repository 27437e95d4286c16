"""Recorder: spans are kept in memory, and written when recording ends.

To record is to append to a list, from any thread and without a lock. Memory is bounded: whole steps
are dropped, the oldest first, when a step begins and the list is more than half full; and what
still does not fit is only counted.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple, Self

from compressa.errors import ConfigError, StateError
from compressa.tracing.assembly import assembled
from compressa.tracing.events import Span, Trace
from compressa.tracing.thread_clock import Spent
from compressa.tracing.training import Training
from compressa.tracing.writer import write

MOST_EVENTS = 1 << 18
"""Some 100 MB of memory and of file."""


class _Begun(NamedTuple):
    step: int
    at_s: float
    events: int  # that came before


class Recording:
    """What one rank records, from `Tracer.start` until it is stopped; ends with a `with` block.

    Args:
        tracer: What it is stopped by.
        path: Where it is written to.
        steps: The first and the last step of interest; None for all.
        most_events: How many spans are kept.

    Attributes:
        training: What the training thread does outside of waits; None before the first step.
    """

    def __init__(
        self, tracer: Tracer, path: Path, steps: tuple[int, int] | None, most_events: int
    ) -> None:
        self.path = path
        self.steps = steps
        self.training: Training | None = None
        self._tracer = tracer
        self._most_events = most_events
        self._events: deque[Span] = deque()
        self._begun: deque[_Begun] = deque()
        self._removed = 0
        self._dropped_steps = 0
        self._refused = itertools.count()
        self._unix_s = _unix_zero_s()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End and write it, unless another one has begun meanwhile."""
        self._tracer.stop(self)

    def __len__(self) -> int:
        return len(self._events)

    def add(self, span: Span) -> None:
        """Keep a span, from any thread, if there is room; else it is counted."""
        if len(self._events) < self._most_events:
            self._events.append(span)
        else:
            next(self._refused)

    def begin(self, step: int) -> None:
        """Note that a step begins, if that is not known, and make room for it.

        On the thread that trains.
        """
        if self._begun and self._begun[-1].step == step:
            return
        if self.training is None or self.training.thread != threading.get_ident():
            if self.training is not None:
                self.training.end()
            self.training = Training(self.add)
        at_s = self.training.begin(step)
        self._begun.append(_Begun(step, at_s, self._removed + len(self._events)))
        while len(self._events) > self._most_events // 2 and len(self._begun) > 1:
            self._drop_first_step()

    def end(self, rank: int, size: int) -> Trace:
        """Return what was recorded, once.

        Args:
            rank: This rank.
            size: Of how many ranks.

        Returns:
            What there was room for of the steps of interest; nothing is kept here.
        """
        if self.training is not None:
            self.training.end()
        ended_s = time.perf_counter()
        spans = assembled(self._drain())
        begun = tuple((step, at_s) for step, at_s, _ in self._begun)
        if self.steps is not None:
            first, last = self.steps
            begun = tuple((step, at_s) for step, at_s in begun if first <= step <= last + 1)
        kept = {step for step, _ in begun if self.steps is None or step <= self.steps[1]}
        return Trace(
            rank,
            size,
            self._unix_s,
            tuple(span for span in spans if span.step in kept),
            begun,
            ended_s,
            self._dropped_steps,
            next(self._refused),
        )

    def _drop_first_step(self) -> None:
        self._begun.popleft()
        for _ in range(self._begun[0].events - self._removed):
            self._events.popleft()
        self._removed = self._begun[0].events
        self._dropped_steps += 1

    def _drain(self) -> list[Span]:
        """Take all; another thread may be about to add one more."""
        spans = []
        while self._events:
            spans.append(self._events.popleft())
        return spans


class Tracer:
    """What the engine and its clients tell of their work; off until somebody wants to know.

    Args:
        rank: This rank.
        size: Number of ranks.
        most_events: How many spans are kept.

    Attributes:
        recording: What is recorded, now or from one of its steps on; None if nothing is.
        on: Whether anything is recorded now.
    """

    def __init__(self, rank: int, size: int, most_events: int = MOST_EVENTS) -> None:
        self.rank = rank
        self.size = size
        self._most_events = most_events
        self.recording: Recording | None = None
        self.on = False

    def start(self, path: str | Path, steps: tuple[int, int] | None = None) -> Recording:
        """Record from now on; what was recorded until now is written.

        Args:
            path: The trace is written to `<stem>-rank<rank><suffix>` beside it.
            steps: The first and the last step to be recorded; it ends by itself afterwards.

        Raises:
            ConfigError: Nothing can be written there, or there are no such steps.
            StateError: What was recorded until now can not be written.
        """
        self.stop()
        if steps is not None and not 0 <= steps[0] <= steps[1]:
            raise ConfigError(f"trace.steps: the first step and the last, not {list(steps)}")
        target = path_of(path, self.rank)
        recording = Recording(self, target, steps, self._most_events)
        self.recording, self.on = recording, steps is None
        atexit.register(self.stop, recording)
        return recording

    def stop(self, recording: Recording | None = None) -> None:
        """End what is recorded, and write it.

        Args:
            recording: Which one; if it has ended, nothing is done. Any, if not given.

        Raises:
            StateError: It can not be written.
        """
        current = self.recording
        if current is None or recording not in (None, current):
            return
        self.recording, self.on = None, False
        atexit.unregister(self.stop)
        try:
            write(current.end(self.rank, self.size), current.path)
        except OSError as error:
            raise StateError(
                f"the trace can not be written to {current.path}: {error.strerror or error}"
            ) from error

    def begin_step(self, step: int) -> None:
        """Note that a step begins, on the thread that trains; if it is told again, once is enough.

        What comes first says it: the forward, where somebody sees it, or else the first gradient.
        """
        recording = self.recording
        if recording is None:
            return
        first, last = recording.steps or (step, step)
        if step > last + 1:  # what a step defers is done in the next
            self.stop(recording)
        elif step >= first:
            self.on = True
            recording.begin(step)

    def calls(self) -> AbstractContextManager[None]:
        """Count what the training thread computes in a `with` block to this package."""
        training = self._training
        return nullcontext() if training is None else training.calls()

    def begin_wait(self) -> None:
        """Note that the training thread is about to wait."""
        training = self._training
        if training is not None:
            training.begin_wait()

    def end_wait(self, name: str, step: int, started_s: float, seconds: float) -> None:
        """Note that the training thread has waited, and goes on now.

        Args:
            name: For what.
            step: In which step.
            started_s: Since when, on `time.perf_counter`.
            seconds: For how long.
        """
        training = self._training
        spent = Spent(None, None) if training is None else training.end_wait()
        self.add(Span("wait", name, step, started_s, seconds, core_s=spent.core_s))

    @property
    def step(self) -> int:
        """Which step is under way, as far as it is recorded; -1 if none is."""
        training = self._training
        return -1 if training is None else training.step

    @property
    def _training(self) -> Training | None:
        recording = self.recording
        return recording.training if self.on and recording is not None else None

    def span(self, stage: str, name: str, step: int, started_s: float, seconds: float) -> None:
        """Note some time that was spent on something by name, from any thread.

        Args:
            stage: "apply", or "wait".
            name: A parameter's, or what is waited for.
            step: The step that it serves.
            started_s: When it began, on `time.perf_counter`.
            seconds: How long it lasted.
        """
        self.add(Span(stage, name, step, started_s, seconds))

    def add(self, span: Span) -> None:
        """Note a span, from any thread."""
        recording = self.recording
        if self.on and recording is not None:
            recording.add(span)


def path_of(path: str | Path, rank: int = 0) -> Path:
    """Return where a rank's trace is to be written, and make the folder.

    Args:
        path: As the user has given it.
        rank: Its number is put into the name.

    Raises:
        ConfigError: It can not be made.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"trace.path: no trace can be written to {path.parent}: {error.strerror}"
        ) from error
    return path.with_name(f"{path.stem}-rank{rank}{path.suffix or '.json'}")


def _unix_zero_s() -> float:
    """Unix time at the zero of `time.perf_counter`; the best of a few, since any may be late."""
    found = []
    for _ in range(5):
        before_s, unix_s, after_s = time.perf_counter(), time.time(), time.perf_counter()
        found.append((after_s - before_s, unix_s - (before_s + after_s) / 2))
    return min(found)[1]
