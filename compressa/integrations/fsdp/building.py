"""Builder: from a plan and an open session to what compresses each group."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from compressa.aggregators.base import State, World
from compressa.engine.measuring.profiler import Ledger
from compressa.engine.session import Session
from compressa.integrations.fsdp.all_gather import GatheredPart
from compressa.integrations.fsdp.groups import Sharding
from compressa.integrations.fsdp.planning import Plan
from compressa.integrations.fsdp.reduce_scatter import ReducedPart
from compressa.integrations.fsdp.shards import Shards
from compressa.integrations.fsdp.sliced import SlicedParameter, slice_elems
from compressa.kernels.compiled import PATIENCE_S, compile_once

_PART_BYTES = 1 << 20  # of a rank's slice: one part is encoded while another is on the wire
_SEEDS_APART = 1 << 16  # replicas round with noise of their own

Coded = TypeVar("Coded", bound=Hashable)


class Builder:
    """Makes the parts of all groups, numbered in their order.

    Args:
        plan: What is compressed.
        sharding: Of the model.
        session: Between its shards.
    """

    def __init__(self, plan: Plan, sharding: Sharding, session: Session) -> None:
        self._plan, self._sharding, self._session = plan, sharding, session
        self._state = State(sharding.device)
        replica = sharding.replicas.rank() if sharding.replicas else 0
        seed = (plan.config.engine.seed + replica * _SEEDS_APART) % (1 << 32)
        self._world = World(session.rank, session.size, seed, "scatter_reduce", self._state)
        self._number = itertools.count()

    def build(self) -> Shards:
        """Make them, and compile what they call. Collective.

        Raises:
            ConfigError: A message would be too long.
            TransportError: A rank is lost.
        """
        gradients, weights = Ledger(), Ledger()
        reduced: dict[int, list[ReducedPart]] = {}
        gathered: dict[int, list[GatheredPart]] = {}
        for group in self._sharding.groups:
            if self._plan.codings and group.reduced:
                own = self._parts(group.reduced, self._plan.codings)
                elems = slice_elems(group.reduced)
                reduced[group.number] = [
                    ReducedPart(n, coding, sliced, elems, self._world, gradients)
                    for n, coding, sliced in own
                ]
            if self._plan.weights:
                elems = slice_elems(group.gathered)
                gathered[group.number] = [
                    GatheredPart(n, codec, sliced, elems, self._world, weights)
                    for n, codec, sliced in self._parts(group.gathered, self._plan.weights)
                ]
        chain = itertools.chain.from_iterable
        self._compile([*chain(reduced.values()), *chain(gathered.values())])
        return Shards(
            self._session,
            self._state,
            self._sharding.reduced,
            reduced,
            gathered,
            gradients,
            weights,
            self._sharding.counted(self._sharding.shards),
        )

    def _parts(
        self, sliced: Sequence[SlicedParameter], codings: Mapping[str, Coded]
    ) -> list[tuple[int, Coded, list[SlicedParameter]]]:
        """Put parameters that are encoded alike together, until a part is large."""
        filling: defaultdict[Coded, list[SlicedParameter]] = defaultdict(list)
        full: list[tuple[Coded, list[SlicedParameter]]] = []
        for one in (one for one in sliced if one.elems):
            coding = codings[one.parameter.name]
            filling[coding].append(one)
            if sum(p.elems * p.parameter.dtype.itemsize for p in filling[coding]) >= _PART_BYTES:
                full.append((coding, filling.pop(coding)))
        return [(next(self._number), *part) for part in [*full, *filling.items()]]

    def _compile(self, parts: Sequence[ReducedPart | GatheredPart]) -> None:
        """Call all kernels once; what is compiled, one process of a host compiles for all."""
        plan, session = self._plan, self._session

        def work() -> None:
            for part in parts:
                part.warm_up()

        if session.device_stream.device.type == "cpu":
            codings = sorted({repr(x) for x in (*plan.codings.values(), *plan.weights.values())})
            compile_once(f"fsdp {codings}", work)
        else:
            with session.device_stream.current():
                work()
        session.all_gather(b"", "compiled kernels", session.config.exchange.deadline_s + PATIENCE_S)
