"""Time cells: the parts of one step, on whatever link the testbed has been set to.

DDP's ``backward`` does not return before communication is done, so its time says nothing about
computing. What computing costs is measured in the same run on a plain copy of the model: every
rank does forward, backward and optimizer step at the same time as the others, with no
communication, half of it before the timed steps and half behind them. What a timed step takes
beyond that is codec and exposed communication.

Where ranks share cores, a rank computes slower while the others compute too, and that is the price
which a training step pays. So the copies are stepped in stretches, step after step with no barrier
between them: ranks leave a barrier one after another, and a step right behind one would be measured
while some ranks still sleep, with clocks that start late, at down to half its price (4 ranks on 2
cores). A stretch counts the steps in its middle only. Its first ones are left out, and a rank that
has enough goes on computing, uncounted, until every rank has enough.

The parts are means, since the scheduler's slices are as long as a short pass: a pass then runs
either undisturbed or waits for a whole slice, and a median sees one of the two. Clocks touch, so
that the parts add up to all the time of a stretch: fetching a batch and zeroing the gradients
counts as forward, as a timed step has it too. A stretch is also long in seconds, for the scheduler
treats ranks as equals over many slices only.

A compressor's own warm-up is left out: what is timed is the step that comes after it.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from compressa import Stats
from lab.compressors import Attachment, attach, trained_elems
from lab.records import TimeAnswer, TimeCell
from lab.tasks import Task, load_task
from lab.training import Stepper, build_model, parameters_sha256

Edge = Callable[[Literal["start", "end"]], None]

_LEAD_STEPS = 2
"""Steps of a stretch before it counts: caches fill and the last rank leaves the barrier."""

_STRETCH_S = 0.25
"""A stretch counts at least that long: tens of the scheduler's slices for every rank."""


def _now_s() -> float:
    """The time when all that was asked of a device is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass
class _Parts:
    """Seconds of all counted steps together, by part."""

    steps: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0

    def add(self, started_s: float, ends_s: tuple[float, float, float]) -> None:
        """One step that began at ``started_s``, and the clock at the end of each part."""
        self.steps += 1
        self.forward_s += ends_s[0] - started_s
        self.backward_s += ends_s[1] - ends_s[0]
        self.optimizer_s += ends_s[2] - ends_s[1]


class _Probe:
    """Forward, backward and optimizer step on a copy of the model, without communication."""

    def __init__(self, cell: TimeCell, task: Task, model: nn.Module) -> None:
        self._model = copy.deepcopy(model)
        self._stepper = Stepper(cell, task, self._model)
        self._step = 0
        self.parts = _Parts()

    def stretch(self, steps: int) -> None:
        """At least ``steps`` counted steps, during which every rank computes all the time."""
        dist.barrier()
        for _ in range(_LEAD_STEPS):
            self._one_step()
        self._count(steps)
        others = dist.barrier(async_op=True)
        while not others.is_completed():
            self._one_step()
        others.wait()  # raises if a rank was lost

    def _count(self, steps: int) -> None:
        began = before = _now_s()
        done = 0
        while done < steps or before - began < _STRETCH_S:
            ends = self._one_step()
            self.parts.add(before, ends)
            before = ends[-1]
            done += 1

    def _one_step(self) -> tuple[float, float, float]:
        """One step; the clock at the end of its forward, backward and optimizer part."""
        loss = self._stepper.loss(self._model, self._step)
        self._step += 1
        forward_end = _now_s()
        loss.backward()
        backward_end = _now_s()
        self._stepper.optimizer.step()
        return forward_end, backward_end, _now_s()


def _steps(stepper: Stepper, attachment: Attachment, steps: range) -> list[float]:
    """Seconds of each step, from the end of the one before it."""
    times: list[float] = []
    before = _now_s()
    for step in steps:
        stepper.loss(attachment.model, step).backward()
        attachment.step()
        now = _now_s()
        times.append(now - before)
        before = now
    return times


def measure(cell: TimeCell, edge: Edge) -> TimeAnswer:
    """Runs one time cell on this rank; every rank must call it with the same cell.

    Args:
        cell: What to time.
        edge: Called before and behind the timed section, when every rank is there and nothing is
            on the wire; returns when the driver has read the interface counters.

    Raises:
        compressa.CompressaError: The compressor's configuration is wrong, or a rank was lost.
        KeyError: There is no such task or compressor.
    """
    task, model = load_task(cell.task), build_model(cell)
    probe = _Probe(cell, task, model)
    stepper = Stepper(cell, task, model)
    attachment = attach(
        model, stepper.optimizer, cell.compressor, steady=True, bucket_cap_mb=cell.bucket_cap_mb
    )
    try:
        _steps(stepper, attachment, range(cell.warmup_steps))
        probe.stretch((cell.steps + 1) // 2)
        timed = range(cell.warmup_steps, cell.warmup_steps + cell.steps)
        before = _at_edge(edge, "start", attachment)
        times = _steps(stepper, attachment, timed)
        after = _at_edge(edge, "end", attachment)
        attachment.sync()
        probe.stretch((cell.steps + 1) // 2)
    finally:
        attachment.close()
    return _answer(model, probe.parts, times, attachment, before, after)


def _at_edge(edge: Edge, which: Literal["start", "end"], attachment: Attachment) -> Stats | None:
    dist.barrier()
    stats = attachment.stats()
    edge(which)
    return stats


def _answer(
    model: nn.Module,
    parts: _Parts,
    times: list[float],
    attachment: Attachment,
    before: Stats | None,
    after: Stats | None,
) -> TimeAnswer:
    codec_s, accounted = None, attachment.bytes_per_step
    if before is not None and after is not None:
        codec_s = (after.codec_s - before.codec_s) / len(times)
        accounted = (after.sent_bytes - before.sent_bytes) / len(times)
    return TimeAnswer(
        parameters_sha256=parameters_sha256(model),
        step_s=statistics.median(times),
        step_mean_s=statistics.fmean(times),
        forward_s=parts.forward_s / parts.steps,
        backward_s=parts.backward_s / parts.steps,
        optimizer_s=parts.optimizer_s / parts.steps,
        codec_s=codec_s,
        bytes_dense=4 * trained_elems(model),
        bytes_accounted=accounted,
    )
