"""From an aggregator's rounds to a program of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from compressa.aggregators.base import (
    Aggregator,
    AllGather,
    Request,
    Round,
    Rounds,
    Turn,
    Verb,
)
from compressa.collectives import direct
from compressa.collectives.base import BackendAllReduce, Compute, Program
from compressa.errors import StateError
from compressa.schedulers import Transfer
from compressa.transports.base import Transport

BACKEND_SUM_FROM_BYTES = 1 << 20
"""Dense sums from this size on are left to the backend: it moves bytes without Python, and
below it two hops of ours beat the 2 (P - 1) of a ring. Static, since the two add up in
different orders."""


def uses_backend(round_: Round, transport: Transport) -> bool:
    """Whether a round is summed by the transport's backend."""
    large = round_.capacity_bytes >= BACKEND_SUM_FROM_BYTES
    return round_.dense and large and transport.sums and transport.size > 1


def transfers(unit: int, rounds: Sequence[Round], transport: Transport) -> list[Transfer]:
    """List the exchanges that a unit's program will launch, in order.

    Raises:
        ConfigError: No message can be as long.
    """
    result: list[Transfer] = []
    if transport.size == 1:
        return result
    share = (transport.size - 1) / transport.size
    for round_ in rounds:
        size = round_.capacity_bytes
        round_.check()
        if round_.verb is Verb.ALL_GATHER:
            stages = [size * (transport.size - 1)]
        elif uses_backend(round_, transport):
            stages = [int(2 * size * share)]
        else:
            stages = [int(size * share)] * direct.STAGES_ALL_REDUCE
        result += [Transfer(unit, len(result) + i, wire) for i, wire in enumerate(stages)]
    return result


def unit_program(
    aggregator: Aggregator,
    gradients: Callable[[], Sequence[torch.Tensor]],
    deliver: Callable[[], None],
    turn: Turn,
    transport: Transport,
) -> Program[None]:
    """Run one unit for one step.

    Args:
        aggregator: The unit's.
        gradients: Gives the gradients as the aggregator wants them.
        deliver: Hands the mean back to where the gradients came from.
        turn: The step.
        transport: Where the operations will be carried out.
    """
    rounds = aggregator.rounds
    steps: list[Rounds] = []

    def begin() -> Request | None:
        steps.append(aggregator.run(gradients(), turn))
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
        answer = yield from _carry(request, round_, transport)
        request = yield Compute(partial(resume, answer), "decode")
    if request is not None:
        raise StateError("an aggregator asked for more rounds than it declares")


def _carry(request: Request, round_: Round, transport: Transport) -> Program[Any]:
    rank, size = transport.rank, transport.size
    if isinstance(request, AllGather):
        return (
            yield from direct.all_gather(
                request.payload, request.incoming, rank, size, exact=request.exact
            )
        )
    dense = request.combine.dense
    if dense is not None and uses_backend(round_, transport):
        yield BackendAllReduce(dense)
    else:
        yield from direct.all_reduce(request.combine, request.scratch, rank, size)
    return None
