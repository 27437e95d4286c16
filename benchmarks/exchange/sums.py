"""Sums and gathers of plain values: our algorithms, what the engine chooses, and others'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
import torch.distributed as dist

from benchmarks.exchange.method import Method, Needs, Verb
from compressa.aggregators.base import AllGather, Round
from compressa.aggregators.base import Verb as RoundVerb
from compressa.collectives.algorithms import ALGORITHMS, segments_of
from compressa.collectives.all_gather import ALL_GATHERS, DIRECT
from compressa.collectives.cost import Stage
from compressa.collectives.rank_group import RankGroup
from compressa.collectives.scratch import Scratch
from compressa.engine.session import Session
from compressa.engine.units.sums import Sums
from compressa.link.operations import Operation, carried, summed, values_of, verify

Stages = Callable[[int, int], list[Stage]]
AUTO = "auto"


@final
@dataclass(frozen=True)
class Sum(Method):
    """Sum a vector of float32 over the ranks; the size is that of the vector.

    Attributes:
        costs: Its stages for a size and a number of ranks, where they are known.
    """

    verb: Verb = field(default="all_reduce", kw_only=True)
    costs: Stages | None = None

    def stages(self, size_bytes: int, ranks: int) -> list[Stage] | None:
        """As the algorithm says."""
        return None if self.costs is None else self.costs(size_bytes, ranks)

    def segments(self, size_bytes: int, ranks: int) -> int:
        """As the engine cuts sums."""
        return segments_of(size_bytes, ranks) if self.name in ALGORITHMS else 1

    def needs(self, size_bytes: int, ranks: int) -> Needs:
        """Each rank's values leave it but for a part, and the sum comes back likewise.

        Memory holds the values, what comes in, and what a library makes of them.
        """
        copies = ranks + 1 if self.name == "all_to_all" else 3
        floor_bytes = 2 * (ranks - 1) / ranks * size_bytes
        return Needs(floor_bytes, self._sent_bytes(size_bytes, ranks), ranks * size_bytes * copies)

    def _sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """As the algorithm does; or the fewest."""
        if self.name == "all_to_all":
            return ranks * (ranks - 1) * size_bytes
        if self.name == "recursive_doubling":
            doublings = ranks.bit_length() - 1
            core = 1 << doublings
            return (core * doublings + 2 * (ranks - core)) * size_bytes
        return 2 * (ranks - 1) * size_bytes

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Sum rank + 1 in every element."""
        if self.by != "gloo":
            return summed(self.name, size_bytes, session)
        values = values_of(size_bytes, session)
        call = partial(dist.all_reduce, values)
        return Operation(call, lambda: verify(self.name, values, session.size))


@final
@dataclass(frozen=True)
class Gather(Method):
    """Bring every rank's bytes to all; the size is that of one rank's."""

    verb: Verb = field(default="all_gather", kw_only=True)

    def stages(self, size_bytes: int, ranks: int) -> list[Stage] | None:
        """Ours goes direct: everybody sends to everybody."""
        direct = ALL_GATHERS[DIRECT]
        return direct.stages(size_bytes, ranks) if self.by == "compressa" else None

    def needs(self, size_bytes: int, ranks: int) -> Needs:
        """What all others have, for each; memory holds everything, on every rank, and its own."""
        others_bytes = (ranks - 1) * size_bytes
        return Needs(others_bytes, ranks * others_bytes, ranks * size_bytes * (ranks + 1))

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Gather vectors of rank + 1."""
        rank, size = session.rank, session.size
        values = values_of(size_bytes, session)
        whole = torch.empty(size * values.numel())
        parts = list(whole.chunk(size))
        call: Callable[[], object]
        if self.by == "gloo":
            call = partial(dist.all_gather_into_tensor, whole, values)
        else:
            incoming = {
                peer: parts[peer].view(torch.uint8)
                for peer in RankGroup.everyone(rank, size).others
            }
            request = AllGather(values.view(torch.uint8), incoming, Scratch(values.device))
            round_ = Round(RoundVerb.ALL_GATHER, torch.uint8, values.nbytes)
            call = carried(Sums(session.transport), request, round_, session)
            parts[rank] = values

        def verify_parts() -> None:
            wrong = [r for r, part in enumerate(parts) if not bool((part == r + 1).all())]
            if wrong:
                raise ArithmeticError(f"{self.name} has brought the wrong bytes of ranks {wrong}")

        return Operation(call, verify_parts)
