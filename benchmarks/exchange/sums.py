"""Sums of plain values: our algorithms, what the engine chooses, and others' all-reduces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch.distributed as dist

from benchmarks.exchange.method import Method, Verb
from compressa.collectives.algorithms import ALGORITHMS, segments_of
from compressa.collectives.cost import Stage
from compressa.engine.session import Session
from compressa.link.operation import Operation
from compressa.link.sums import summed, values_of, verify

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

    def floor_bytes(self, size_bytes: int, ranks: int) -> float:
        """Each rank's values leave it but for a part, and the sum comes back likewise."""
        return 2 * (ranks - 1) / ranks * size_bytes

    def sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """As the algorithm does; or the fewest."""
        if self.name == "all_to_all":
            return ranks * (ranks - 1) * size_bytes
        if self.name == "recursive_doubling":
            doublings = ranks.bit_length() - 1
            core = 1 << doublings
            return (core * doublings + 2 * (ranks - core)) * size_bytes
        return 2 * (ranks - 1) * size_bytes

    def memory_bytes(self, size_bytes: int, ranks: int) -> int:
        """The values, what comes in, and what a library makes of them."""
        return ranks * size_bytes * (ranks + 1 if self.name == "all_to_all" else 3)

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Sum rank + 1 in every element."""
        if self.by != "gloo":
            return summed(self.name, size_bytes, session)
        values = values_of(size_bytes, session)
        call = partial(dist.all_reduce, values)
        return Operation(call, lambda: verify(self.name, values, session.size))
