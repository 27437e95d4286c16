"""Methods: the collectives that are compared, what they send and what they should cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from compressa.collectives import round_robin
from compressa.collectives.algorithms import ALGORITHMS
from compressa.collectives.cost import Stage

Maker = Literal["compressa", "gloo", "mpi"]
Verb = Literal["all_reduce", "all_gather"]
Stages = Callable[[int, int], list[Stage]]
MAKERS: tuple[Maker, ...] = ("compressa", "gloo", "mpi")

HOP, ADD = "hop", "add"
"""What ranks also time, for the cost model: exchanges between two of them, and additions."""

HOPS = 4
"""Exchanges in one `hop`: what starts and ends a program should weigh little."""


@dataclass(frozen=True)
class Method:
    """One way to sum over the ranks, or to bring every rank's bytes to all.

    Attributes:
        name: What rows call it.
        by: Whose it is.
        verb: What it does. The size is that of the sum, or of one rank's bytes.
        stages: What each hop costs, for a size and a number of ranks, where that is known.
    """

    name: str
    by: Maker
    verb: Verb
    stages: Stages | None = None

    def formula_bytes(self, size_bytes: int, ranks: int) -> float:
        """Bytes through the busiest port, by the method's own formula.

        Where it is not known how something works, it is what the best way takes.
        """
        if self.stages is not None:
            return sum(stage.port_bytes for stage in self.stages(size_bytes, ranks))
        return least_bytes(self.verb, size_bytes, ranks)

    def sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """Bytes that all ranks together send at least."""
        if self.verb == "all_gather" or self.name == "all_to_all":
            return ranks * (ranks - 1) * size_bytes
        if self.name == "recursive_doubling":
            doublings = ranks.bit_length() - 1
            core = 1 << doublings
            return (core * doublings + 2 * (ranks - core)) * size_bytes
        return 2 * (ranks - 1) * size_bytes


def least_bytes(verb: Verb, size_bytes: int, ranks: int) -> float:
    """Bytes that the busiest port has to carry, whatever is done."""
    others = ranks - 1
    return others * size_bytes if verb == "all_gather" else 2 * others / ranks * size_bytes


def _gather_stages(size_bytes: int, ranks: int) -> list[Stage]:
    return [Stage(ranks - 1, (ranks - 1) * size_bytes)]


METHODS: Sequence[Method] = (
    *(Method(name, "compressa", "all_reduce", row.stages) for name, row in ALGORITHMS.items()),
    Method("scatter_reduce", "compressa", "all_reduce", round_robin.stages),
    Method("auto", "compressa", "all_reduce"),
    Method("all_gather", "compressa", "all_gather", _gather_stages),
    Method("gloo all_reduce", "gloo", "all_reduce"),
    Method("gloo all_gather", "gloo", "all_gather"),
    Method("mpi Allreduce", "mpi", "all_reduce"),
    Method("mpi Allgather", "mpi", "all_gather"),
)
"""All of them; `scatter_reduce` is the engine's, in two exchanges, and `auto` what it chooses."""

BY_NAME = {method.name: method for method in METHODS}


def memory_bytes(method: Method, size_bytes: int, ranks: int) -> int:
    """Memory that all ranks together need for it, nearly."""
    everything = method.verb == "all_gather" or method.name == "all_to_all"
    return ranks * size_bytes * (ranks + 1 if everything else 3)
