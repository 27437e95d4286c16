"""Sums: by which algorithm a round's values are summed over the ranks, by which exchanges.

The choice is a function of the configuration, the size, the number of ranks and, where the
configuration names a measured link, of its figures, which all ranks share: algorithms add up in
different orders, and neither a bit nor a plan may depend on time.

An all-reduce of a Combine goes direct, or, where its values are plain and in one place, by the
configured algorithm or the backend. A Sum of an Accumulator goes by the algorithm that its round
names, else by the configured one: its messages may be a codec's, which no backend can add. Its
stages are as large as those messages, not as the values. It is cut into segments, so that one is
on the wire while another is added up, where its round allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compressa.aggregators.base import AllGather, Broadcast, Request, Round, Sum, Verb
from compressa.collectives import broadcast, direct
from compressa.collectives.accumulator import Accumulator, Span
from compressa.collectives.algorithms import ALGORITHMS, Algorithm, segmented, segments_of
from compressa.collectives.base import BackendAllReduce, Exchange, Program
from compressa.collectives.choice import DIRECT, Costs
from compressa.collectives.dense import DenseValues
from compressa.collectives.hierarchical import Topology, hierarchical, in_order
from compressa.collectives.hierarchical import stages as by_host_stages
from compressa.collectives.team import Team
from compressa.engine.partition import Sizes, wire
from compressa.errors import ConfigError
from compressa.schedulers import Link, Transfer
from compressa.transports.base import Transport

BACKEND_SUM_FROM_BYTES = 1 << 20
"""Dense sums from this size on are left to the backend: it moves bytes without Python, and
below it two hops of ours beat the 2 (P - 1) of a ring."""

_DIRECT = "direct"
_BACKEND = "backend"
_HIERARCHICAL = "hierarchical"
_ACROSS = ALGORITHMS["round_robin"]
_BUSY_S = 4e-4  # of a core, which a message takes from what is computed meanwhile
_SMALL_SUM_BYTES = 16 << 10  # up to here messages count, not the bytes of ranks beyond a power of 2


class Sums:
    """What the rounds of aggregators become on one transport.

    Args:
        transport: Where operations will be carried out.
        algorithm: For sums whose round names none: "auto", "hierarchical", a name of `ALGORITHMS`,
            or, for those of plain values, "backend".
        hosts: By rank, what is the same for ranks that share a host; each has its own if not given.
        costs: What sums of plain values take on this network, the same on every rank: for those,
            "auto" goes by it.
        sizes: Into what chunks the transport cuts messages, if it does.
        overtaking: Whether what is more urgent shall overtake, while others compute: "auto" then
            leaves no sum to the backend, and prefers few hops.

    Attributes:
        costs: As given. It may change between two steps, after which plans are made anew.
    """

    def __init__(
        self,
        transport: Transport,
        algorithm: str = "auto",
        hosts: Sequence[str] = (),
        costs: Costs | None = None,
        sizes: Sizes | None = None,
        *,
        overtaking: bool = False,
    ) -> None:
        self.costs = costs
        self._overtaking = overtaking
        self._sizes = sizes
        self._transport = transport
        self._chosen = algorithm
        self._topology = Topology.of(hosts or list(map(str, range(transport.size))))

    @property
    def wire(self) -> Link | None:
        """The network as schedulers see it; None if nothing was measured."""
        return wire(self.costs, self._sizes)

    def transfers(self, unit: int, rounds: Sequence[Round]) -> list[Transfer]:
        """List the exchanges that a unit's program will launch, in order.

        Raises:
            ConfigError: No message can be as long.
        """
        result: list[Transfer] = []
        for round_ in rounds if self._transport.size > 1 else ():
            round_.check()
            first, turns = len(result), self._turns(round_)
            for i, size in enumerate(self._stage_bytes(round_)):
                after = first - 1 if i < turns else first + i - turns
                result.append(Transfer(unit, first + i, size, after=after))
        return result

    def ordered(self, rounds: Sequence[Round]) -> list[int]:
        """Return the stages of a unit's program that all ranks must launch in one order."""
        everything = self._transport.ordered(Exchange({}, {}))
        stages: list[int] = []
        first = 0
        for round_ in rounds if self._transport.size > 1 else ():
            count = len(self._stage_bytes(round_))
            if everything or self.way(round_) == _BACKEND:
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
        if isinstance(request, Broadcast):
            algorithm = self._broadcast(request.payload.numel())
            yield from algorithm.broadcast(
                request.payload, Team.everyone(rank, size), [request.root]
            )
            return None
        if isinstance(request, Sum):
            yield from self._sum(request, round_)
            return None
        values, way = request.combine.dense, self.way(round_)
        if values is None or way == _DIRECT:
            yield from direct.all_reduce(request.combine, request.scratch, rank, size)
        elif way == _BACKEND:
            yield BackendAllReduce(values)
        else:
            all_reduce = segmented(self._algorithm(way), self._segments(round_))
            span, team = Span(0, values.numel()), Team.everyone(rank, size)
            yield from all_reduce(DenseValues(values), span, team, request.scratch)
        return None

    def _broadcast(self, size_bytes: int) -> broadcast.BroadcastAlgorithm:
        """A tree for few bytes; for many, what has the root send them only once or twice."""
        return broadcast.chosen("auto", size_bytes, self._transport.size, 1)

    def _sum(self, request: Sum, round_: Round) -> Program[None]:
        """Sum an accumulator's values; in a world of one they are the sum."""
        rank, size = self._transport.rank, self._transport.size
        if size > 1:
            algorithm = self._algorithm(self.way(round_), request.inside)
            all_reduce = segmented(algorithm, self._segments(round_))
            team = Team.everyone(rank, size)
            yield from all_reduce(request.values, request.span, team, request.scratch)

    def way(self, round_: Round) -> str:
        """Return by what a round's values are brought together, if it is a sum of any kind.

        That is "direct", "backend", "hierarchical", or one of `ALGORITHMS`.
        """
        if round_.verb is Verb.SUM:
            return round_.algorithm or self._way_of_sum(round_)
        if not round_.dense or self._transport.size == 1:
            return _DIRECT
        return self._fastest(round_.capacity_bytes) if self._chosen == "auto" else self._chosen

    def _fastest(self, size_bytes: int) -> str:
        """What the link's figures predict; without any, what is mostly right."""
        backend = self._transport.sums and not self._overtaking
        if self.costs is not None:
            busy_s = _BUSY_S if self._overtaking else 0.0
            return self.costs.best(size_bytes, self._transport.size, backend=backend, busy_s=busy_s)
        return _BACKEND if backend and size_bytes >= BACKEND_SUM_FROM_BYTES else DIRECT

    def _way_of_sum(self, round_: Round) -> str:
        """The configured algorithm; else one that sums as few ranks' errors as may be at once.

        It does not go by the link's figures, which say nothing of encoding and decoding.
        """
        if self._chosen == _BACKEND:
            raise ConfigError(
                'exchange.algorithm = "backend": no backend adds up what a codec makes; '
                'choose "auto" or another algorithm'
            )
        if self._chosen != "auto":
            return self._chosen
        size = self._transport.size
        butterfly = size.bit_count() == 1 or round_.capacity_bytes <= _SMALL_SUM_BYTES
        return "halving_doubling" if butterfly else "ring"

    def _turns(self, round_: Round) -> int:
        """How many stages of a round follow each other without waiting for each other."""
        gathered = round_.verb in (Verb.ALL_GATHER, Verb.BROADCAST)
        whole = gathered or self.way(round_) in (_BACKEND, _DIRECT)
        return 1 if whole else self._segments(round_)

    def _segments(self, round_: Round) -> int:
        if round_.verb is Verb.SUM and not round_.segmented:
            return 1
        return segments_of(round_.capacity_bytes, self._transport.size)

    def _stage_bytes(self, round_: Round) -> list[int]:
        """How much a rank sends in each exchange of a round, at most."""
        size, ranks = round_.capacity_bytes, self._transport.size
        if round_.verb is Verb.ALL_GATHER:
            return [size * (ranks - 1)]
        if round_.verb is Verb.BROADCAST:
            stages = self._broadcast(size).stages(size, ranks, 1)
            return [int(stage.port_bytes) for stage in stages]
        part = size * (ranks - 1) // ranks
        way = self.way(round_)
        if way == _BACKEND:
            return [2 * part]
        if way == _DIRECT:
            return [part] * direct.STAGES_ALL_REDUCE
        segments = self._segments(round_)
        stages = self._algorithm(way).stages(size // segments, ranks)
        if way == _HIERARCHICAL and round_.inside_bytes is not None:
            inside, _ = by_host_stages(round_.inside_bytes // segments, self._topology, _ACROSS)
            _, outside = by_host_stages(size // segments, self._topology, _ACROSS)
            stages = in_order(inside, outside)
        return [int(stage.port_bytes) for stage in stages for _ in range(segments)]

    def _algorithm(self, way: str, inside: Accumulator | None = None) -> Algorithm:
        if way == _HIERARCHICAL:
            return hierarchical(self._topology, _ACROSS, inside)
        return ALGORITHMS[way]
