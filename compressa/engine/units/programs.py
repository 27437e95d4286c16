"""From an aggregator's rounds to a program of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from compressa.aggregators.base import Aggregator, Request, Rounds, StepContext
from compressa.collectives.base import Compute, Program
from compressa.engine.units.sums import Sums
from compressa.errors import StateError


def unit_program(
    aggregator: Aggregator,
    gradients: Callable[[], Sequence[torch.Tensor]],
    deliver: Callable[[], None],
    context: StepContext,
    sums: Sums,
) -> Program[None]:
    """Run one unit for one step.

    Args:
        aggregator: The unit's.
        gradients: Gives the gradients as the aggregator wants them.
        deliver: Hands the mean back to where the gradients came from.
        context: The step.
        sums: Does what the aggregator asks for.
    """
    rounds = aggregator.rounds
    steps: list[Rounds] = []

    def begin() -> Request | None:
        steps.append(aggregator.run(gradients(), context))
        return next(steps[0], None)

    def resume(answer: Any) -> Request | None:
        try:
            return steps[0].send(answer)
        except StopIteration:
            deliver()
            return None

    request: Request | None = yield Compute(begin, "encode")
    for round_ in rounds:
        if request is None:
            raise StateError("an aggregator asked for fewer rounds than it declares")
        answer = yield from sums.run(request, round_)
        request = yield Compute(partial(resume, answer), "decode")
    if request is not None:
        raise StateError("an aggregator asked for more rounds than it declares")
