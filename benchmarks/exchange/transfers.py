"""Transfers: one message from the first host to the second; the others look on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
import torch.distributed as dist

from benchmarks.exchange.method import Method, Verb
from compressa.collectives.base import Program
from compressa.collectives.cost import Stage
from compressa.collectives.passing import pass_hop
from compressa.engine.session import Session
from compressa.link.operations import Operation, nothing, repeated

SENDER, RECEIVER = 0, 1
_PERIOD = 251  # a prime: no chunk looks like the one before it

# Few frames have few headers; and what the kernel holds has to stay in the processor's cache.
_FRAME_BYTES, _UNSENT_BYTES = 4 << 20, 1 << 17


@final
@dataclass(frozen=True)
class Transfer(Method):
    """Bring bytes from one host to another."""

    verb: Verb = field(default="transfer", kw_only=True)

    @classmethod
    def striped(cls, connections: int) -> Transfer:
        """Ours over several connections."""
        exchange = (("connections", connections),)
        return cls(f"send over {connections}", "compressa", exchange=exchange)

    @classmethod
    def in_large_frames(cls) -> Transfer:
        """Ours where nothing more urgent comes, which could not overtake a frame."""
        exchange = (("chunk_bytes", _FRAME_BYTES), ("credit_bytes", _FRAME_BYTES + _UNSENT_BYTES))
        return cls("send in large frames", "compressa", exchange=exchange)

    def stages(self, size_bytes: int, ranks: int) -> list[Stage] | None:
        """One message; how several connections share it is not for a formula of one port."""
        known = self.by == "compressa" and "connections" not in dict(self.exchange)
        return [Stage(1, size_bytes)] if known else None

    def floor_bytes(self, size_bytes: int, ranks: int) -> float:
        """The message."""
        return size_bytes

    def sent_bytes(self, size_bytes: int, ranks: int) -> int:
        """The message."""
        return size_bytes

    def memory_bytes(self, size_bytes: int, ranks: int) -> int:
        """The message at both ends, and what a library keeps of it."""
        return 5 * size_bytes

    def operation(self, size_bytes: int, session: Session) -> Operation:
        """Send a pattern."""
        data, rank = pattern(size_bytes), session.rank
        if rank == RECEIVER:
            data.zero_()
        call: Callable[[], object]
        if self.by == "compressa":
            call = repeated(session, partial(_program, data, rank))
        elif rank == SENDER:
            call = partial(dist.send, data, RECEIVER)
        elif rank == RECEIVER:
            call = partial(dist.recv, data, SENDER)
        else:
            call = nothing
        return Operation(call, lambda: check_pattern(self.name, data))


def _program(data: torch.Tensor, rank: int) -> Program[None]:
    if rank == SENDER:
        yield from pass_hop({RECEIVER: data}, {})
    elif rank == RECEIVER:
        yield from pass_hop({}, {SENDER: data})


def pattern(size_bytes: int) -> torch.Tensor:
    """Return so many bytes, uint8."""
    period = torch.arange(_PERIOD, dtype=torch.uint8)
    return period.repeat(-(-size_bytes // _PERIOD))[:size_bytes].clone()


def check_pattern(what: str, data: torch.Tensor) -> None:
    """Raise ArithmeticError unless these bytes are a pattern."""
    if not torch.equal(data, pattern(data.numel())):
        raise ArithmeticError(f"{what} has brought wrong bytes")
