"""Sums: by which algorithm a round is carried, by which exchanges.

The choice is a function of the configuration, the size, the number of ranks and, where the
configuration names a measured link, of its figures, which all ranks share: algorithms add up in
different orders, and neither a bit nor a plan may depend on time.

An all-reduce goes by the algorithm that its round names; else by the configured one, cut into
segments, so that one is on the wire while another is added up. Its messages may be a codec's, which
no backend can add: its stages are as large as those, not as the values. All-gathers and broadcasts
bring the same bytes whatever carries them: what takes the least time does, and where no link was
measured, an all-gather goes direct.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from compressa.aggregators.base import Request, Round, Verb
from compressa.collectives import backend, broadcast, neighbours
from compressa.collectives.accumulator import Accumulator
from compressa.collectives.algorithms import (
    ALGORITHMS,
    Algorithm,
    AllReduce,
    segmented,
    segments_of,
)
from compressa.collectives.all_gather import ALL_GATHERS, DIRECT, all_gather
from compressa.collectives.base import Compute, Exchange, LoweredSum, Program
from compressa.collectives.choice import BACKEND, ROUND_ROBIN, Costs
from compressa.collectives.cost import Stage, always
from compressa.collectives.hierarchical import Topology, hierarchical, in_order
from compressa.collectives.hierarchical import stages as by_host_stages
from compressa.collectives.lowering import DIVIDED, Table, lowered
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.config import Config
from compressa.engine.units.partition import Sizes, wire
from compressa.errors import ConfigError
from compressa.schedulers import Link, Transfer
from compressa.transports.base import Transport
from compressa.transports.lowered import AVAILABLE
from compressa.transports.table import meant

LARGE_SUM_BYTES = 1 << 20
"""From this size on plain values are summed in pairs or round a ring, or by a backend, which moves
bytes without Python; below it two hops, or one for few bytes where sums are lowered, are faster."""


def lowers(config: Config) -> bool:
    """Return whether ranks on CPUs run sums of plain values as tables, on a system as this one."""
    return AVAILABLE and meant(config.exchange.transport)[-1].lowers


Carrier = Callable[..., Program[Any]]
"""From the fields of a request to the program that carries it out, and ends with the answer."""

_HIERARCHICAL = "hierarchical"
_ACROSS = ALGORITHMS[ROUND_ROBIN]
_BY_BACKEND = Algorithm(backend.all_reduce, backend.stages, always)
_BUSY_S = 4e-4  # of a core, which a message takes from what is computed meanwhile
_SMALL_SUM_BYTES = 16 << 10  # up to here messages count, not the bytes of ranks beyond a power of 2


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

    @property
    def wire(self) -> Link | None:
        """The network as schedulers see it; None if nothing was measured."""
        return wire(self.costs, self._sizes)

    def transfers(self, unit: int, rounds: Sequence[Round]) -> list[Transfer]:
        """List the exchanges that a unit's program will launch, in order; none in a world of one.

        Args:
            unit: Its number.
            rounds: What its aggregator declares.

        Returns:
            Each with what one rank sends at most, and the stage that it waits for; times are 0.

        Raises:
            ConfigError: No message can be as long.
        """
        result: list[Transfer] = []
        for round_ in rounds if self._transport.size > 1 else ():
            round_.check()
            first, segments = len(result), self._segments(round_)
            for i, size in enumerate(self._stage_bytes(round_)):
                after = first - 1 if i < segments else first + i - segments
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
        for round_ in rounds if self._transport.size > 1 else ():
            count = len(self._stage_bytes(round_))
            if everything or self.algorithm(round_) == BACKEND:
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
        """Return what makes programs of a round's requests, for as long as costs are the same.

        Raises:
            ConfigError: No backend adds up what a codec makes.
        """
        if round_.verb is Verb.BROADCAST:
            return self._bring
        if round_.verb is Verb.NEIGHBOURS:
            return partial(neighbours.neighbours, exact=round_.exact)
        name = self.algorithm(round_)
        if round_.verb is Verb.ALL_GATHER:
            rank, exact = self._transport.rank, round_.exact
            return partial(all_gather, ALL_GATHERS[name], rank=rank, exact=exact)
        if round_.algorithm is not None:  # whole
            return partial(self._reduce, ALGORITHMS[name].all_reduce)
        segments = self._segments(round_)
        if name == _HIERARCHICAL:
            return partial(self._reduce_by_host, segments)
        all_reduce = segmented(self._row(name), segments)
        lowered = self._lowered(round_, all_reduce) if name in ALGORITHMS else None
        return lowered or partial(self._reduce, all_reduce)

    def _lowered(self, round_: Round, all_reduce: AllReduce) -> Carrier | None:
        """What has the transport run sums of plain values as tables, if it can."""
        if not (round_.dense and self._transport.lowers):
            return None
        if round_.dtype in self._refused:
            return None
        carrier = _LoweredSums(self._transport, all_reduce, self._group, round_.dtype)
        if carrier.of(round_.capacity_bytes // round_.dtype.itemsize) is None:
            self._refused.add(round_.dtype)
            return None
        return carrier

    def _bring(self, payload: torch.Tensor, root: int) -> Program[None]:
        row = self._broadcast(payload.numel())
        return row.broadcast(payload, self._group, [root])

    def _reduce(
        self,
        all_reduce: AllReduce,
        values: Accumulator,
        scratch: Scratch,
        inside: Accumulator | None,
    ) -> Program[None]:
        return _divided(values, all_reduce(values, values.span, self._group, scratch))

    def _reduce_by_host(
        self, segments: int, values: Accumulator, scratch: Scratch, inside: Accumulator | None
    ) -> Program[None]:
        all_reduce = segmented(self._row(_HIERARCHICAL, inside), segments)
        return _divided(values, all_reduce(values, values.span, self._group, scratch))

    def algorithm(self, round_: Round) -> str:
        """Return the name of what carries a round.

        Args:
            round_: No broadcast.

        Returns:
            Of what goes to neighbours "direct"; of an all-gather, one of `ALL_GATHERS`; of an
            all-reduce "backend", "hierarchical", or one of `ALGORITHMS`.

        Raises:
            ConfigError: "backend" is configured, and the round sums what a codec makes.
        """
        if round_.verb is Verb.NEIGHBOURS:
            return DIRECT
        if round_.verb is Verb.ALL_GATHER:
            return DIRECT if self.costs is None else self._fastest_gather(round_, self.costs)
        if round_.algorithm is not None:
            return round_.algorithm
        if self._transport.size == 1:
            return ROUND_ROBIN
        if not round_.dense:
            return self._of_payloads(round_)
        return self._fastest(round_.capacity_bytes) if self._chosen == "auto" else self._chosen

    def symmetric(self, round_: Round) -> bool:
        """Return whether all ranks have the same to do in a round, but for some bytes.

        A simulation then runs one of them. A broadcast is never so.
        """
        if round_.verb in (Verb.BROADCAST, Verb.NEIGHBOURS):
            return False
        name = self.algorithm(round_)
        row = ALL_GATHERS[name] if round_.verb is Verb.ALL_GATHER else self._row(name)
        return row.symmetric(self._transport.size)

    def by_rank(self, round_: Round) -> bool:
        """Return whether a round has every value summed in the order of ranks, or not at all.

        Then none of them depends on what else is summed with it.
        """
        if round_.verb is not Verb.ALL_REDUCE:
            return round_.verb is Verb.ALL_GATHER
        row = ALGORITHMS.get(self.algorithm(round_))
        return row is not None and (row.by_rank or self._transport.size == 2)

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

    def _fastest_gather(self, round_: Round, costs: Costs) -> str:
        """What they predict for an all-gather, unless the configuration leaves no choice."""
        if self._chosen != "auto":
            return DIRECT
        size, ranks = round_.capacity_bytes, self._transport.size
        return costs.best_gather(size, ranks, exact=round_.exact, busy_s=self._busy_s)

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

    def _segments(self, round_: Round) -> int:
        """Into how many parts a round is cut, which follow each other without waiting."""
        if round_.verb is not Verb.ALL_REDUCE or round_.algorithm is not None:
            return 1
        if self._transport.size == 1 or self.algorithm(round_) == BACKEND:
            return 1
        return segments_of(round_.capacity_bytes, self._transport.size)

    def _stage_bytes(self, round_: Round) -> list[int]:
        """How much a rank sends in each exchange of a round, at most."""
        segments = self._segments(round_)
        stages = self._stages(round_, segments)
        return [int(stage.port_bytes) for stage in stages for _ in range(segments)]

    def _stages(self, round_: Round, segments: int) -> list[Stage]:
        """What each exchange of a segment costs."""
        size, ranks = round_.capacity_bytes, self._transport.size
        if round_.verb is Verb.BROADCAST:
            return self._broadcast(size).stages(size, ranks, 1)
        if round_.verb is Verb.NEIGHBOURS:
            return neighbours.stages(size, round_.peers)
        name = self.algorithm(round_)
        if round_.verb is Verb.ALL_GATHER:
            return ALL_GATHERS[name].stages(size, ranks)
        if name == _HIERARCHICAL and round_.inside_bytes is not None:
            inside, _ = by_host_stages(round_.inside_bytes // segments, self._topology, _ACROSS)
            _, outside = by_host_stages(size // segments, self._topology, _ACROSS)
            return in_order(inside, outside)
        return self._row(name).stages(size // segments, ranks)

    def _broadcast(self, size_bytes: int) -> broadcast.BroadcastAlgorithm:
        """A tree for few bytes; for many, what has the root send them only once or twice."""
        return broadcast.chosen("auto", size_bytes, self._transport.size, 1)

    def _row(self, name: str, inside: Accumulator | None = None) -> Algorithm:
        """What sums under a name."""
        if name == _HIERARCHICAL:
            return hierarchical(self._topology, _ACROSS, inside)
        return _BY_BACKEND if name == BACKEND else ALGORITHMS[name]


class _LoweredSums:
    """The sums of a round, lowered: each length that it has is lowered once.

    Args:
        transport: Runs them.
        all_reduce: What is lowered.
        group: All ranks.
        dtype: Of the values.
    """

    def __init__(
        self, transport: Transport, all_reduce: AllReduce, group: RankGroup, dtype: torch.dtype
    ) -> None:
        self._transport, self._dtype = transport, dtype
        self._lower = partial(lowered, all_reduce, item_bytes=dtype.itemsize, group=group)
        self._known: dict[int, tuple[object, Table] | None] = {}

    def of(self, elems: int) -> tuple[object, Table] | None:
        """Return the program of a sum of so many values, and its table; None if there is none."""
        if elems not in self._known:
            table = self._lower(elems=elems)
            program = self._transport.lower(table, self._dtype)
            self._known[elems] = None if program is None else (program, table)
        return self._known[elems]

    def __call__(
        self, values: Accumulator, scratch: Scratch, inside: Accumulator | None
    ) -> Program[None]:
        """Return the program of a request's fields."""
        dense, divisor = values.dense, values.divisor
        assert dense is not None, "the round says that values are plain"
        found = self.of(dense.numel())
        assert found is not None, "the transport lowers this dtype"
        program, table = found
        if divisor > 1 and dense.dtype not in DIVIDED:
            yield Compute(values.divide, "encode", values.quick(values.span.elems))
            divisor = 1
        yield LoweredSum(program, dense, table.exchanges, table.sent_bytes, table.peers, divisor)


def _divided(values: Accumulator, program: Program[None]) -> Program[None]:
    """Divide values, if that is to be done, before a program sums them."""
    if values.divisor > 1:
        yield Compute(values.divide, "encode", values.quick(values.span.elems))
    yield from program
