"""Collectives without I/O: generators of operations that something else carries out.

A *program* yields operations and is resumed with their results. It never blocks and never
touches a socket, so that one communication thread drives many programs at once, and the same
code runs on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch

from compressa.collectives.region import Region

T = TypeVar("T")


@dataclass(frozen=True)
class Exchange:
    """Send some buffers, receive others; done when all are in and the sent ones are free.

    Resumes the program with `{peer: received}`, where `received` is the filled front of the
    buffer in `incoming`.

    Attributes:
        outgoing: uint8 buffer for each peer that is sent to.
        incoming: uint8 buffer for each peer that is heard from; its length is the capacity.
        exact: Whether each message fills its buffer (else it may be shorter).
        capacity_bytes: For each peer that is sent to, the length of the buffer in which it
            receives.
        grace_s: Seconds that it may take beyond the deadline; infinite where nothing is due yet,
            and it may wait for as long as its peers live.
        gathered: Where all ranks send all others messages of one length, and say so alike: memory
            for as many parts as there are ranks, of which `outgoing` and `incoming` are the fronts.
            A transport may bring every rank's part to all instead.
    """

    outgoing: Mapping[int, torch.Tensor]
    incoming: Mapping[int, torch.Tensor]
    exact: bool = True
    capacity_bytes: Mapping[int, int] = field(default_factory=dict)
    grace_s: float = 0.0
    gathered: torch.Tensor | None = None
    exchanges: ClassVar[int] = 1

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that this rank sends."""
        return sum(buffer.numel() for buffer in self.outgoing.values())


@dataclass(frozen=True)
class BackendAllReduce:
    """Sum a tensor over all ranks, in place, with the backend's own all-reduce."""

    tensor: torch.Tensor
    exchanges: ClassVar[int] = 1


class LoweredSum(NamedTuple):
    """Sum values over all ranks, in place, by a table of hops that the transport runs.

    It stands for as many exchanges, whose names it uses.

    Attributes:
        program: What the transport's `lower` returned; not under way.
        values: What is summed; contiguous, or tensors on a CPU.
        exchanges: How many it stands for.
        sent_bytes: What this rank sends in them.
        peers: With how many ranks they are.
        divisor: What the values are divided by before; else than 1 only for some dtypes
            (`compressa.collectives.lowering.DIVIDED`).
    """

    program: Any
    values: torch.Tensor | Region
    exchanges: int
    sent_bytes: int
    peers: int
    divisor: int = 1


@dataclass(frozen=True)
class Compute:
    """Work for the device or the worker threads; resumes the program with its result.

    Attributes:
        work: What is to be done.
        stage: "encode" or "decode", for statistics.
        quick: Whether it takes less time than handing it to another thread.
    """

    work: Callable[[], Any]
    stage: str
    quick: bool = False
    exchanges: ClassVar[int] = 0


@dataclass(frozen=True)
class SideBySide:
    """Programs side by side; resumes the program, with None, when all of them have ended.

    Attributes:
        programs: They must not use the same memory.
        stages: How many exchanges each of them asks for.
    """

    programs: Sequence[Program[None]]
    stages: int

    @property
    def exchanges(self) -> int:
        """How many all of them ask for."""
        return self.stages * len(self.programs)


Operation = Exchange | BackendAllReduce | LoweredSum | Compute | SideBySide
"""Of each, `exchanges` says how many names of messages it takes."""
Program = Generator[Operation, Any, T]
