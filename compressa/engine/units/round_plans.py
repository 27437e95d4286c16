"""Round plans: how a round is carried on one transport, one class for each verb.

All-gathers and broadcasts bring the same bytes whatever carries them. An all-reduce is cut into
segments, so that one is on the wire while another is added up; its messages may be a codec's, which
no backend can add: its stages are as large as those, not as the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from compressa.aggregators.base import Round
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
from compressa.collectives.base import Compute, LoweredSum, Program
from compressa.collectives.choice import BACKEND, CANDIDATES, ROUND_ROBIN, Costs
from compressa.collectives.cost import Stage, always
from compressa.collectives.dense import DenseValues
from compressa.collectives.hierarchical import Topology, hierarchical, in_order
from compressa.collectives.hierarchical import stages as by_host_stages
from compressa.collectives.lowering import DIVIDED, Table, lowered
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.transports.base import Transport

Carrier = Callable[..., Program[Any]]
"""From the fields of a request to the program that carries it out, and ends with the answer."""

HIERARCHICAL = "hierarchical"
_ACROSS = ALGORITHMS[ROUND_ROBIN]
_BY_BACKEND = Algorithm(backend.all_reduce, backend.stages, always)


class RoundPlan(ABC):
    """How a round is carried.

    Args:
        round_: What is carried.
        group: All ranks.

    Attributes:
        name: Of the algorithm.
        described: The same, for people.
        segments: How many parts follow each other without waiting.
        symmetric: Whether all ranks have the same to do, but for some bytes.
        by_rank: Whether every value is summed in the order of ranks, or not at all: then none of
            them depends on what else is summed with it.
    """

    name: str
    segments = 1
    symmetric = False
    by_rank = False

    def __init__(self, round_: Round, group: RankGroup) -> None:
        self._round, self._group = round_, group

    @property
    def described(self) -> str:  # noqa: D102 - see the class
        return self.name

    @property
    @abstractmethod
    def stages(self) -> list[Stage]:
        """What each exchange of a segment costs."""

    @abstractmethod
    def carrier(self) -> Carrier:
        """Return what makes programs of the round's requests, for as long as costs are the same."""

    def seconds(self, costs: Costs, *, backend: bool) -> float | None:
        """Return what it takes, without encoding and decoding; None where nobody can tell.

        Args:
            costs: Of the network.
            backend: Whether there is a backend that sums.
        """
        return costs.link.time_s(self.stages)


class BroadcastPlan(RoundPlan):
    """A tree for few bytes; for many, what has the root send them only once or twice."""

    name = "broadcast"

    @property
    def stages(self) -> list[Stage]:
        """Of the algorithm that takes the least time on the link that is assumed."""
        size_bytes = self._round.capacity_bytes
        return self._algorithm(size_bytes).stages(size_bytes, self._group.size, 1)

    def carrier(self) -> Carrier:
        """Choose by the payload's length, which is the same on all ranks."""

        def bring(payload: torch.Tensor, root: int) -> Program[None]:
            return self._algorithm(payload.numel()).broadcast(payload, self._group, [root])

        return bring

    def _algorithm(self, size_bytes: int) -> broadcast.BroadcastAlgorithm:
        return broadcast.chosen("auto", size_bytes, self._group.size, 1)


class NeighboursPlan(RoundPlan):
    """To some ranks at once."""

    name = DIRECT

    @property
    def described(self) -> str:
        """To how many they go, at most."""
        return f"to {self._round.peers} neighbours"

    @property
    def stages(self) -> list[Stage]:
        """One, to the most neighbours that a rank has."""
        return neighbours.stages(self._round.capacity_bytes, self._round.peers)

    def carrier(self) -> Carrier:
        """Return what sends and hears."""
        return partial(neighbours.neighbours, exact=self._round.exact)


class AllGatherPlan(RoundPlan):
    """By an algorithm of the table.

    Args:
        name: Its name.
    """

    by_rank = True

    def __init__(self, round_: Round, group: RankGroup, name: str) -> None:
        super().__init__(round_, group)
        self.name, self._row = name, ALL_GATHERS[name]
        self.symmetric = self._row.symmetric(group.size)

    @property
    def described(self) -> str:
        """With the algorithm, unless it is the plain one."""
        return "all_gather" if self.name == DIRECT else f"all_gather by {self.name}"

    @property
    def stages(self) -> list[Stage]:
        """The algorithm's."""
        return self._row.stages(self._round.capacity_bytes, self._group.size)

    def carrier(self) -> Carrier:
        """Return the algorithm for this rank."""
        return partial(all_gather, self._row, rank=self._group.index, exact=self._round.exact)

    def seconds(self, costs: Costs, *, backend: bool) -> float | None:
        """As the sum that exchanges most alike was measured."""
        return costs.gather_s(self.name, self._round.capacity_bytes, self._group.size)


class AllReducePlan(RoundPlan):
    """By an algorithm of the table, a backend, or one within hosts and one across them.

    Args:
        name: Its name.
        topology: Which ranks share hosts.
        transport: May run sums of plain values as tables.
        refused: Dtypes that it does not; grows.
    """

    def __init__(
        self,
        round_: Round,
        group: RankGroup,
        name: str,
        topology: Topology,
        transport: Transport,
        refused: set[torch.dtype],
    ) -> None:
        super().__init__(round_, group)
        self.name = name
        self._topology, self._transport, self._refused = topology, transport, refused
        self._row = self._algorithm(None)
        self.symmetric = self._row.symmetric(group.size)
        listed = ALGORITHMS.get(name)
        self.by_rank = listed is not None and (listed.by_rank or group.size == 2)
        if group.size > 1 and name != BACKEND and round_.algorithm is None:
            self.segments = segments_of(round_.capacity_bytes, group.size)

    @property
    def described(self) -> str:
        """Payloads by `round_robin` are scattered and reduced."""
        return "scatter_reduce" if self._round.algorithm == ROUND_ROBIN else self.name

    @property
    def stages(self) -> list[Stage]:
        """The algorithm's, for a segment."""
        round_, ranks = self._round, self._group.size
        size = round_.capacity_bytes // self.segments
        if self.name != HIERARCHICAL or round_.inside_bytes is None:
            return self._row.stages(size, ranks)
        within = round_.inside_bytes // self.segments
        inside, _ = by_host_stages(within, self._topology, _ACROSS)
        _, outside = by_host_stages(size, self._topology, _ACROSS)
        return in_order(inside, outside)

    def carrier(self) -> Carrier:
        """Have the transport run plain values as a table, if it can; else return programs."""
        if self._round.algorithm is not None:  # whole
            return partial(self._reduce, self._row.all_reduce)
        if self.name == HIERARCHICAL:
            return self._reduce_by_host
        all_reduce = segmented(self._row, self.segments)
        found = self._lowered(all_reduce) if self.name in ALGORITHMS else None
        return found or partial(self._reduce, all_reduce)

    def seconds(self, costs: Costs, *, backend: bool) -> float | None:
        """As candidates were measured; what is added is decoded where payloads are scattered."""
        round_, ranks = self._round, self._group.size
        size_bytes = round_.capacity_bytes
        if round_.dense and self.name not in costs.candidates(backend=backend):
            return None
        if round_.algorithm is None:
            known = self.name in CANDIDATES
            return costs.time_s(self.name, size_bytes, ranks) if known else None
        link = replace(costs.link, reduce_s=0.0) if self.name == ROUND_ROBIN else costs.link
        return costs.factor(self.name, size_bytes) * link.time_s(self.stages)

    def _algorithm(self, inside: Accumulator | None) -> Algorithm:
        if self.name == HIERARCHICAL:
            return hierarchical(self._topology, _ACROSS, inside)
        return _BY_BACKEND if self.name == BACKEND else ALGORITHMS[self.name]

    def _lowered(self, all_reduce: AllReduce) -> Carrier | None:
        """What has the transport run sums of plain values as tables, if it can."""
        round_ = self._round
        if not (round_.dense and self._transport.lowers) or round_.dtype in self._refused:
            return None
        carrier = _LoweredSums(self._transport, all_reduce, self._group, round_.dtype)
        if carrier.of(round_.capacity_bytes // round_.dtype.itemsize) is None:
            self._refused.add(round_.dtype)
            return None
        return carrier

    def _reduce(
        self,
        all_reduce: AllReduce,
        values: Accumulator,
        scratch: Scratch,
        inside: Accumulator | None,
    ) -> Program[None]:
        return _divided(values, all_reduce(values, values.span, self._group, scratch))

    def _reduce_by_host(
        self, values: Accumulator, scratch: Scratch, inside: Accumulator | None
    ) -> Program[None]:
        all_reduce = segmented(self._algorithm(inside), self.segments)
        return _divided(values, all_reduce(values, values.span, self._group, scratch))


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
        assert isinstance(values, DenseValues), "the round says that values are plain"
        found, divisor = self.of(values.span.elems), values.divisor
        assert found is not None, "the transport lowers this dtype"
        program, table = found
        if divisor > 1 and self._dtype not in DIVIDED:
            yield Compute(values.divide, "encode", values.quick(values.span.elems))
            divisor = 1
        sizes = table.exchanges, table.sent_bytes, table.peers
        yield LoweredSum(program, values.lent, *sizes, divisor)


def _divided(values: Accumulator, program: Program[None]) -> Program[None]:
    """Divide values, if that is to be done, before a program sums them."""
    if values.divisor > 1:
        yield Compute(values.divide, "encode", values.quick(values.span.elems))
    yield from program
