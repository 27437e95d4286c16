"""Sums: by which algorithm a round's values are summed over the ranks, by which exchanges.

The choice is a function of the configuration, the size and the number of ranks: algorithms add up
in different orders, and neither a bit nor a plan may depend on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compressa.aggregators.base import AllGather, Request, Round, Verb
from compressa.collectives import direct
from compressa.collectives.accumulator import Span
from compressa.collectives.algorithms import ALGORITHMS, segmented
from compressa.collectives.base import BackendAllReduce, Exchange, Program
from compressa.collectives.dense import DenseValues
from compressa.collectives.hierarchical import Topology, hierarchical
from compressa.collectives.team import Team
from compressa.schedulers import Transfer
from compressa.transports.base import Transport

BACKEND_SUM_FROM_BYTES = 1 << 20
"""Dense sums from this size on are left to the backend: it moves bytes without Python, and
below it two hops of ours beat the 2 (P - 1) of a ring."""

_DIRECT = "direct"
_BACKEND = "backend"
_SEGMENT_BYTES = 256 << 10  # of a rank's part: what goes in one message
_MOST_SEGMENTS = 8


class Sums:
    """What the rounds of aggregators become on one transport.

    Args:
        transport: Where operations will be carried out.
        algorithm: For sums of plain values: "auto", "backend", "hierarchical", or a name of
            `ALGORITHMS`.
        hosts: By rank, what is the same for ranks that share a host; each has its own if not given.
    """

    def __init__(
        self, transport: Transport, algorithm: str = "auto", hosts: Sequence[str] = ()
    ) -> None:
        self._transport = transport
        self._chosen = algorithm
        self._algorithms = dict(ALGORITHMS)
        if algorithm == "hierarchical":
            topology = Topology.of(hosts or list(map(str, range(transport.size))))
            self._algorithms[algorithm] = hierarchical(topology, ALGORITHMS["round_robin"])

    def transfers(self, unit: int, rounds: Sequence[Round]) -> list[Transfer]:
        """List the exchanges that a unit's program will launch, in order.

        Raises:
            ConfigError: No message can be as long.
        """
        result: list[Transfer] = []
        for round_ in rounds if self._transport.size > 1 else ():
            round_.check()
            sizes = self._stage_bytes(round_)
            result += [Transfer(unit, len(result) + i, size) for i, size in enumerate(sizes)]
        return result

    def ordered(self, rounds: Sequence[Round]) -> list[int]:
        """Return the stages of a unit's program that all ranks must launch in one order."""
        everything = self._transport.ordered(Exchange({}, {}))
        stages: list[int] = []
        first = 0
        for round_ in rounds if self._transport.size > 1 else ():
            count = len(self._stage_bytes(round_))
            if everything or self._way(round_) == _BACKEND:
                stages += range(first, first + count)
            first += count
        return stages

    def carry(self, request: Request, round_: Round) -> Program[Any]:
        """Do what an aggregator asks for; returns the answer to it."""
        rank, size = self._transport.rank, self._transport.size
        if isinstance(request, AllGather):
            gathered = yield from direct.all_gather(
                request.payload, request.incoming, rank, size, exact=request.exact
            )
            return gathered
        values, way = request.combine.dense, self._way(round_)
        if values is None or way == _DIRECT:
            yield from direct.all_reduce(request.combine, request.scratch, rank, size)
        elif way == _BACKEND:
            yield BackendAllReduce(values)
        else:
            all_reduce = segmented(self._algorithms[way], self._segments(round_))
            span, team = Span(0, values.numel()), Team.everyone(rank, size)
            yield from all_reduce(DenseValues(values), span, team, request.scratch)
        return None

    def _way(self, round_: Round) -> str:
        if not round_.dense or self._transport.size == 1:
            return _DIRECT
        if self._chosen == "round_robin":
            return _DIRECT  # the same, without a copy of what arrives
        if self._chosen != "auto":
            return self._chosen
        large = round_.capacity_bytes >= BACKEND_SUM_FROM_BYTES
        return _BACKEND if large and self._transport.sums else _DIRECT

    def _segments(self, round_: Round) -> int:
        part = round_.capacity_bytes // self._transport.size
        return max(1, min(part // _SEGMENT_BYTES, _MOST_SEGMENTS))

    def _stage_bytes(self, round_: Round) -> list[int]:
        """How much a rank sends in each exchange of a round, at most."""
        size, ranks = round_.capacity_bytes, self._transport.size
        if round_.verb is Verb.ALL_GATHER:
            return [size * (ranks - 1)]
        part = size * (ranks - 1) // ranks
        way = self._way(round_)
        if way == _BACKEND:
            return [2 * part]
        if way == _DIRECT:
            return [part] * direct.STAGES_ALL_REDUCE
        segments = self._segments(round_)
        stages = self._algorithms[way].stages(size // segments, ranks)
        return [int(stage.port_bytes) for stage in stages] * segments
