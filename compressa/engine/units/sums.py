"""Sums: by which algorithm a round is carried, by which exchanges.

The choice is a function of the configuration, the size, the number of ranks and, where the
configuration names a measured link, of its figures, which all ranks share: algorithms add up in
different orders, and neither a bit nor a plan may depend on time.

An all-reduce goes by the algorithm that its round names; else by the configured one. All-gathers
and broadcasts go by what takes the least time, and where no link was measured, an all-gather goes
direct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compressa.aggregators.base import Request, Round, Verb
from compressa.collectives.all_gather import DIRECT
from compressa.collectives.base import Exchange, Program
from compressa.collectives.choice import BACKEND, ROUND_ROBIN, Costs
from compressa.collectives.hierarchical import Topology
from compressa.collectives.rank_group import RankGroup
from compressa.config import Config
from compressa.engine.units.partition import Sizes, wire
from compressa.engine.units.round_plans import (
    AllGatherPlan,
    AllReducePlan,
    BroadcastPlan,
    Carrier,
    NeighboursPlan,
    RoundPlan,
)
from compressa.errors import ConfigError
from compressa.schedulers import Link, Transfer
from compressa.transports.base import Transport
from compressa.transports.lowered import AVAILABLE
from compressa.transports.table import meant

LARGE_SUM_BYTES = 1 << 20
"""From this size on plain values are summed in pairs or round a ring, or by a backend, which moves
bytes without Python; below it two hops, or one for few bytes where sums are lowered, are faster."""

_BUSY_S = 4e-4  # of a core, which a message takes from what is computed meanwhile
_SMALL_SUM_BYTES = 16 << 10  # up to here messages count, not the bytes of ranks beyond a power of 2


def lowers(config: Config) -> bool:
    """Return whether ranks on CPUs run sums of plain values as tables, on a system as this one."""
    return AVAILABLE and meant(config.exchange.transport)[-1].lowers


class Sums:
    """What the rounds of aggregators become on one transport.

    Args:
        transport: Where operations will be carried out.
        algorithm: Of all-reduces whose round names none: "auto", "hierarchical", a name of
            `ALGORITHMS`, or, for those of plain values, "backend".
        hosts: By rank, what is the same for ranks that share a host; each has its own if not given.
        costs: What sums of plain values and all-gathers take on this network, the same on every
            rank: for those, "auto" goes by it.
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
        self._refused: set[torch.dtype] = set()  # what the transport does not lower
        self._group = RankGroup.everyone(transport.rank, transport.size)
        self._topology = Topology.of(hosts or list(map(str, range(transport.size))))
        self._plans: Mapping[Verb, Callable[[Round], RoundPlan]] = {
            Verb.ALL_REDUCE: self._all_reduce,
            Verb.ALL_GATHER: self._all_gather,
            Verb.BROADCAST: lambda round_: BroadcastPlan(round_, self._group),
            Verb.NEIGHBOURS: lambda round_: NeighboursPlan(round_, self._group),
        }

    @property
    def wire(self) -> Link | None:
        """The network as schedulers see it; None if nothing was measured."""
        return wire(self.costs, self._sizes)

    def plan(self, round_: Round) -> RoundPlan:
        """Return how a round is carried.

        Args:
            round_: What an aggregator declares.

        Raises:
            ConfigError: "backend" is configured, and the round sums what a codec makes.
        """
        return self._plans[round_.verb](round_)

    def transfers(self, unit: int, rounds: Sequence[Round]) -> list[Transfer]:
        """List the exchanges that a unit's program will launch, in order; none in a world of one.

        Args:
            unit: Its number.
            rounds: What its aggregator declares.

        Returns:
            Each with what one rank sends at most, and the stage that it waits for; times are 0.

        Raises:
            ConfigError: No message can be as long; or see `plan`.
        """
        result: list[Transfer] = []
        for round_ in rounds if self._transport.size > 1 else ():
            round_.check()
            plan, first = self.plan(round_), len(result)
            sizes = [int(stage.port_bytes) for stage in plan.stages for _ in range(plan.segments)]
            for i, size in enumerate(sizes):
                after = first - 1 if i < plan.segments else first + i - plan.segments
                result.append(Transfer(unit, first + i, size, after=after))
        return result

    def ordered(self, rounds: Sequence[Round]) -> list[int]:
        """Return the stages of a unit's program that all ranks must launch in one order.

        All of them, where the transport has no names of messages; else those that are left to the
        backend. None in a world of one.

        Args:
            rounds: What the unit's aggregator declares.
        """
        everything = self._transport.ordered(Exchange({}, {}))
        stages: list[int] = []
        first = 0
        for plan in map(self.plan, rounds if self._transport.size > 1 else ()):
            count = len(plan.stages) * plan.segments
            if everything or plan.name == BACKEND:
                stages += range(first, first + count)
            first += count
        return stages

    def run(self, request: Request, round_: Round) -> Program[Any]:
        """Return the program of what an aggregator asks for, which ends with the answer to it.

        Args:
            request: The aggregator's.
            round_: The round that it has declared for that.

        Returns:
            For a gather, one that ends with the bytes by rank; else with None, when the request's
            own memory holds the result.
        """
        return self.carrier(round_)(**vars(request))

    def carrier(self, round_: Round) -> Carrier:
        """Return what makes programs of a round's requests; see `RoundPlan.carrier`."""
        return self.plan(round_).carrier()

    def _all_gather(self, round_: Round) -> RoundPlan:
        """By what the figures predict to be fastest, unless the configuration leaves no choice."""
        name, size_bytes = DIRECT, round_.capacity_bytes
        if self.costs is not None and self._chosen == "auto":
            how: Any = {"exact": round_.exact, "busy_s": self._busy_s}
            name = self.costs.best_gather(size_bytes, self._transport.size, **how)
        return AllGatherPlan(round_, self._group, name)

    def _all_reduce(self, round_: Round) -> RoundPlan:
        where = self._topology, self._transport, self._refused
        return AllReducePlan(round_, self._group, self._algorithm(round_), *where)

    def _algorithm(self, round_: Round) -> str:
        """Name what carries an all-reduce."""
        if round_.algorithm is not None:
            return round_.algorithm
        if self._transport.size == 1:
            return ROUND_ROBIN
        if not round_.dense:
            return self._of_payloads(round_)
        return self._fastest(round_.capacity_bytes) if self._chosen == "auto" else self._chosen

    def _fastest(self, size_bytes: int) -> str:
        """What the link's figures predict for a sum; without any, what is mostly right."""
        backend = self._transport.sums and not self._overtaking
        if self.costs is not None:
            busy_s, ranks = self._busy_s, self._transport.size
            return self.costs.best(size_bytes, ranks, backend=backend, busy_s=busy_s)
        large, ranks = size_bytes >= LARGE_SUM_BYTES, self._transport.size
        if not self._transport.lowers:
            return BACKEND if backend and large else ROUND_ROBIN
        if (ranks - 1) * size_bytes <= _SMALL_SUM_BYTES:
            return "all_to_all"
        if not large or self._overtaking:
            return ROUND_ROBIN
        return "halving_doubling" if ranks.bit_count() == 1 else "ring"

    @property
    def _busy_s(self) -> float:
        return _BUSY_S if self._overtaking else 0.0

    def _of_payloads(self, round_: Round) -> str:
        """The configured algorithm; else one that sums as few ranks' errors as may be at once.

        It does not go by the link's figures, which say nothing of encoding and decoding.
        """
        if self._chosen == BACKEND:
            raise ConfigError(
                'exchange.algorithm = "backend": no backend adds up what a codec makes; '
                'choose "auto" or another algorithm'
            )
        if self._chosen != "auto":
            return self._chosen
        size = self._transport.size
        butterfly = size.bit_count() == 1 or round_.capacity_bytes <= _SMALL_SUM_BYTES
        return "halving_doubling" if butterfly else "ring"
