"""Faults that tests put into the library on purpose, to see that the suite notices them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from compressa.schedulers import Name, Plan

from compressa.aggregators.base import StepContext
from compressa.aggregators.scalecom import ScaleComAggregator
from compressa.aggregators.scopes import ScopePayload
from compressa.codecs._multi_tensor_sparse import SparseEncoder
from compressa.codecs.draw import Draw
from compressa.codecs.payload import HEADER_BYTES
from compressa.engine.communication import Communication
from compressa.engine.engine import Engine
from compressa.engine.task import Task
from compressa.engine.units.phase import Phase, StepPlan


@contextlib.contextmanager
def reset_residuals_at_rebuild() -> Iterator[None]:
    """Forget all residuals when step 1 begins, as state keyed by bucket would."""
    begin = Engine._begin

    def broken(self: Engine, step: int, *rest: Any) -> None:
        begin(self, step, *rest)
        if step == 1:
            for vector in self.state.vectors.values():
                vector.zero_()

    with mock.patch.object(Engine, "_begin", broken):
        yield


@contextlib.contextmanager
def forget_residuals_on_load() -> Iterator[None]:
    """Load a checkpoint, then drop its residuals."""
    from compressa.hooks.handle import Handle

    load = Handle.load

    def broken(self: Handle, path: str) -> None:
        load(self, path)
        for vector in self.engine.state.vectors.values():
            vector.zero_()

    with mock.patch.object(Handle, "load", broken):
        yield


@contextlib.contextmanager
def drop_one_element() -> Iterator[None]:
    """A codec that writes a zero where its largest element was."""
    encode = SparseEncoder.encode

    def broken(self: SparseEncoder, draw: Draw, loss_scale: float) -> None:
        encode(self, draw, loss_scale)
        for vector in self._batch.vectors:
            vector.payload[:4] = 0

    with mock.patch.object(SparseEncoder, "encode", broken):
        yield


def _renamed(step_plan: StepPlan, other: Callable[[Name], Name]) -> StepPlan:
    order, launches = (
        tuple(map(other, names)) for names in (step_plan.plan.order, step_plan.launches)
    )
    return StepPlan(Plan(order, step_plan.plan.first_step), launches)


@contextlib.contextmanager
def swap_two_equal_units_unseen() -> Iterator[None]:
    """Rank 1 launches two units of equal size in the other order, and no plan is compared."""
    plan = Phase.plan

    def broken(self: Phase, *args: Any) -> StepPlan:
        made = plan(self, *args)
        sizes = [unit.layout.elems for unit in self.units]
        pairs = itertools.combinations(range(len(sizes)), 2)
        first, second = next((a, b) for a, b in pairs if sizes[a] == sizes[b])
        if dist.get_rank() != 1:
            return made
        names = {first: second, second: first}
        return _renamed(made, lambda name: (names.get(name[0], name[0]), name[1]))

    with (
        mock.patch.object(Phase, "plan", broken),
        mock.patch("compressa.engine.engine.agree_on_order"),
    ):
        yield


@contextlib.contextmanager
def swap_two_units_on_rank_1() -> Iterator[None]:
    """Rank 1 follows a plan in which the first two indices are exchanged."""
    plan = Phase.plan

    def broken(self: Phase, *args: Any) -> StepPlan:
        made = plan(self, *args)
        if dist.get_rank() != 1:
            return made
        first, second = [
            transfer for transfer in made.launches or made.plan.order if transfer[1] == 0
        ][:2]
        swapped = {first: second, second: first}
        return _renamed(made, lambda name: swapped.get(name, name))

    with mock.patch.object(Phase, "plan", broken):
        yield


def _spoil_on_rank_1(spoil: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    """Have rank 1 change every payload of step 1 after it is sealed."""

    @contextlib.contextmanager
    def patched() -> Iterator[None]:
        seal = ScopePayload.seal

        def broken(
            self: ScopePayload, payload: torch.Tensor, context: StepContext, body_bytes: int
        ) -> torch.Tensor:
            filled = seal(self, payload, context, body_bytes)
            if dist.get_rank() != 1 or context.step != 1:
                return filled
            return spoil(payload, filled)

        with mock.patch.object(ScopePayload, "seal", broken):
            yield

    return patched


@contextlib.contextmanager
def another_version_on_rank_1() -> Iterator[None]:
    """Rank 1 has another release of the library."""
    release = "9.9.9" if dist.get_rank() == 1 else "0.1.0"
    with mock.patch("compressa.engine.start.startup.version", return_value=release):
        yield


@contextlib.contextmanager
def divide_by_zero_on_rank_1() -> Iterator[None]:
    """An unforeseen error on a worker thread, in step 1."""
    seal = ScopePayload.seal

    def broken(
        self: ScopePayload, payload: torch.Tensor, context: StepContext, body_bytes: int
    ) -> torch.Tensor:
        if dist.get_rank() == 1 and context.step == 1:
            raise ZeroDivisionError("a bug in a codec")
        return seal(self, payload, context, body_bytes)

    with mock.patch.object(ScopePayload, "seal", broken):
        yield


@contextlib.contextmanager
def forget_a_unit_on_rank_1() -> Iterator[None]:
    """Rank 1 never starts unit 0 of step 1."""
    start = Communication.start

    def broken(self: Communication, task: Task) -> None:
        if (dist.get_rank(), task.step, task.unit) != (1, 1, 0):
            start(self, task)

    with mock.patch.object(Communication, "start", broken):
        yield


def _longer(payload: torch.Tensor, filled: torch.Tensor) -> torch.Tensor:
    return torch.cat([filled, torch.zeros(1, dtype=torch.uint8)])


def _patch_byte(offset: int, value: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def spoil(payload: torch.Tensor, filled: torch.Tensor) -> torch.Tensor:
        filled[offset] = value
        return filled

    return spoil


def _spoil_indices(payload: torch.Tensor, filled: torch.Tensor) -> torch.Tensor:
    filled[-24:] = 0xFF  # where a sparse scope has its indices, in whatever format
    return filled


@contextlib.contextmanager
def leader_sends_wrong_indices() -> Iterator[None]:
    """In step 1, whoever picks the indices of a unit sends others than there can be."""
    pick = ScaleComAggregator._pick

    def broken(
        self: ScaleComAggregator, gradients: Sequence[torch.Tensor], context: StepContext
    ) -> None:
        pick(self, gradients, context)
        if context.step == 1:
            self._payload[HEADER_BYTES:] = 0xFF

    with mock.patch.object(ScaleComAggregator, "_pick", broken):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "reset residuals at rebuild": reset_residuals_at_rebuild,
    "forget residuals on load": forget_residuals_on_load,
    "drop one element": drop_one_element,
    "swap two equal units unseen": swap_two_equal_units_unseen,
    "swap two units on rank 1": swap_two_units_on_rank_1,
    "another version on rank 1": another_version_on_rank_1,
    "a codec that divides by zero on rank 1": divide_by_zero_on_rank_1,
    "rank 1 forgets a unit": forget_a_unit_on_rank_1,
    "one byte short": _spoil_on_rank_1(lambda payload, filled: filled[:-1]),
    "one byte long": _spoil_on_rank_1(_longer),
    "only one byte": _spoil_on_rank_1(lambda payload, filled: filled[:1]),
    "wrong magic": _spoil_on_rank_1(_patch_byte(0, 0x00)),
    "wrong step": _spoil_on_rank_1(_patch_byte(8, 0xEE)),
    "wrong body length": _spoil_on_rank_1(_patch_byte(20, 0xEE)),
    "wrong indices of the leader": leader_sends_wrong_indices,
    "wrong indices": _spoil_on_rank_1(_spoil_indices),
}
