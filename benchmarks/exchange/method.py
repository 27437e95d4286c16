"""Method: one way to bring numbers or bytes between hosts; what it must send, and what it does.

There is a file for each shape of methods, and a table of all of them in `methods`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from compressa.collectives.cost import Link, Stage
from compressa.engine.session import Session
from compressa.link.operations import Operation

Maker = Literal["compressa", "gloo", "mpi", "ray"]
Verb = Literal["all_reduce", "all_gather", "broadcast", "transfer", "push_pull"]
MAKERS: tuple[Maker, ...] = ("compressa", "gloo", "mpi", "ray")


@dataclass(frozen=True)
class Method(ABC):
    """One way to do something.

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
    def floor_bytes(self, size_bytes: int, ranks: int) -> float:
        """Bytes that the busiest port has to carry, whatever is done."""

    @abstractmethod
    def sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """Bytes that all ranks together send at least."""

    @abstractmethod
    def memory_bytes(self, size_bytes: int, ranks: int) -> int:
        """Memory that all ranks together need, nearly."""

    @abstractmethod
    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Make ready on a rank of ours, which all must do; others' ranks do as their names say."""

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
            return self.floor_bytes(size_bytes, ranks)
        return sum(stage.port_bytes for stage in stages)
