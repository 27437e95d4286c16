"""Method: one way to bring numbers or bytes between hosts; what it must send, and what it does.

There is a file for each shape of methods, and a table of all of them in `methods`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from compressa.collectives.cost import Link, Stage
from compressa.engine.session import Session
from compressa.link.operations import Operation

Maker = Literal["compressa", "gloo", "mpi", "ray"]
Verb = Literal["all_reduce", "all_gather", "broadcast", "transfer", "push_pull"]
MAKERS: tuple[Maker, ...] = ("compressa", "gloo", "mpi", "ray")


class Needs(NamedTuple):
    """What something takes, whatever is done.

    Attributes:
        floor_bytes: That the busiest port has to carry.
        sent_bytes: That all ranks together send at least.
        memory_bytes: That all ranks together need, nearly.
    """

    floor_bytes: float
    sent_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Method(ABC):
    """One way to do something.

    Everywhere `size_bytes` is the size of what is summed, or of what each rank gives, as the method
    says, and `ranks` is how many take part, one on each host.

    Attributes:
        name: What rows call it.
        by: Whose it is.
        verb: What it does; those that do the same with as many bytes can be compared.
        exchange: What our transport is set to, of `[exchange]`, beside the defaults.
        least_ranks: With fewer it has no meaning.
    """

    name: str
    by: Maker
    verb: Verb = field(kw_only=True)
    exchange: tuple[tuple[str, int], ...] = field(default=(), kw_only=True)
    least_ranks: int = field(default=2, kw_only=True)

    @abstractmethod
    def needs(self, size_bytes: int, ranks: int) -> Needs:
        """Return what it takes at least."""

    @abstractmethod
    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Make ready on a rank of ours; others' ranks do as their names say. Collective.

        Args:
            size_bytes: Of what is done.
            session: Of all ranks; its transport is set as `exchange` says.
        """

    def stages(self, size_bytes: int, ranks: int) -> list[Stage] | None:
        """What each hop costs; None where that is not known."""
        return None

    def segments(self, size_bytes: int, ranks: int) -> int:
        """Into how many parts it is cut that go through these hops side by side."""
        return 1

    def predicted_s(self, link: Link, size_bytes: int, ranks: int) -> float | None:
        """What it should take; None where its hops are not known."""
        segments = self.segments(size_bytes, ranks)
        stages = self.stages(size_bytes // segments, ranks)
        return None if stages is None else link.time_s(stages, segments)

    def formula_bytes(self, size_bytes: int, ranks: int) -> float:
        """Bytes through the busiest port, by the method's own formula.

        Where it is not known how something works, it is what the best way takes.
        """
        stages = self.stages(size_bytes, ranks)
        if stages is None:
            return self.needs(size_bytes, ranks).floor_bytes
        return sum(stage.port_bytes for stage in stages)
