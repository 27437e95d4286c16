from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

from lab import timing, training
from lab.records import CompressorSpec, TimeCell

FETCH_S, FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.01, 0.03, 0.06, 0.02
STEP_S = FETCH_S + FORWARD_S + BACKWARD_S + OPTIMIZER_S


class Machine:
    """A clock of its own, and fewer cores than ranks: while others idle, computing is cheaper.

    The first step behind a barrier finds ranks still asleep, and so takes half the time; once this
    rank has arrived at a barrier without waiting, the others need ``lag_steps`` of its steps more.
    """

    def __init__(self, lag_steps: int = 3) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.waited_barriers = 0
        self.lost = False
        self._lag_steps = lag_steps
        self._last_barrier = 0
        self._arrived = -1

    def perf_counter(self) -> float:
        return self.now_s

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return 4

    def barrier(self, async_op: bool = False) -> Machine | None:
        if async_op:
            self._arrived = self.steps
            return self
        self.waited_barriers += 1
        self._last_barrier = self.steps
        return None

    def is_completed(self) -> bool:
        return self.steps >= self._arrived + self._lag_steps

    def wait(self) -> None:
        assert self.is_completed(), "this rank idles while the others are measured"
        if self.lost:
            raise RuntimeError("connection closed by peer")

    def compute(self, seconds: float) -> None:
        alone = self.steps == self._last_barrier
        self.now_s += seconds / 2 if alone else seconds


class Work:
    """Task, optimizer and loss in one, spending the machine's time; some parts meet a slice."""

    def __init__(self, machine: Machine, slice_s: float = 0.0, every: int = 1) -> None:
        self._machine = machine
        self._slice_s = slice_s
        self._every = every

    def optimizer(self, model: nn.Module, steps: int) -> tuple[Work, None]:
        return self, None

    def zero_grad(self, set_to_none: bool) -> None:
        pass

    def batch(self, rank: int, world: int, step: int, seed: int) -> tuple[torch.Tensor, ...]:
        self._machine.compute(FETCH_S)
        return torch.zeros(2, 1).unbind()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> Work:
        late = self._machine.steps % self._every == 0
        self._machine.compute(FORWARD_S + late * self._slice_s)
        return self

    def backward(self) -> None:
        self._machine.compute(BACKWARD_S)

    def step(self) -> None:
        self._machine.compute(OPTIMIZER_S)
        self._machine.steps += 1


def probe_on(machine: Machine, monkeypatch: pytest.MonkeyPatch, **work: Any) -> timing._Probe:
    monkeypatch.setattr(timing, "dist", machine)
    monkeypatch.setattr(training, "dist", machine)
    monkeypatch.setattr(timing, "time", machine)
    cell = TimeCell(
        task="none", compressor=CompressorSpec(name="none"), seed=0, steps=4, warmup_steps=3
    )
    return timing._Probe(cell, Work(machine, **work), nn.Identity())  # type: ignore[arg-type]


def test_a_step_is_measured_at_its_price_while_every_rank_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    probe = probe_on(machine, monkeypatch)
    probe.stretch(4)
    probe.stretch(4)
    parts = probe.parts
    assert machine.waited_barriers == 2
    assert parts.forward_s / parts.steps == pytest.approx(FETCH_S + FORWARD_S)
    assert parts.backward_s / parts.steps == pytest.approx(BACKWARD_S)
    assert parts.optimizer_s / parts.steps == pytest.approx(OPTIMIZER_S)


def test_a_rank_computes_uncounted_until_the_last_one_has_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(lag_steps=5)
    probe = probe_on(machine, monkeypatch)
    probe.stretch(4)
    assert probe.parts.steps == 4
    assert machine.steps == timing._LEAD_STEPS + 4 + 5


def test_slices_that_hit_one_step_in_four_are_shared_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = probe_on(Machine(), monkeypatch, slice_s=0.4, every=4)
    probe.stretch(8)
    parts = probe.parts
    whole_s = parts.forward_s + parts.backward_s + parts.optimizer_s
    assert whole_s / parts.steps == pytest.approx(STEP_S + 0.4 / 4)


def test_short_steps_are_counted_for_many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = probe_on(Machine(), monkeypatch)
    probe.stretch(1)
    assert probe.parts.steps * STEP_S >= timing._STRETCH_S


def test_a_rank_lost_in_a_stretch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    machine.lost = True
    with pytest.raises(RuntimeError, match="closed by peer"):
        probe_on(machine, monkeypatch).stretch(1)
