"""The contract of a transport: exchanges between ranks, with a name for every message.

A transport carries out `Exchange` and `BackendAllReduce` operations and calls back when they
are done, from a thread of its own. After a `TransportError` it is dead; a new one is built
under the next epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError, TransportError
from compressa.transports.reactor import Reactor


class Key(NamedTuple):
    """Name of one exchange; all its messages bear it.

    Attributes:
        step: Optimizer step.
        unit: Number of the unit.
        stage: Number of the exchange within the unit's program.
        part: Number of the part, where an exchange is carried out in parts.
    """

    step: int
    unit: int
    stage: int
    part: int = 0


Received = dict[int, torch.Tensor]
OnSent = Callable[[Key, float, float], None]
Done = Callable[[Received | CompressaError], None]


@dataclass(frozen=True)
class Traffic:
    """What a transport has sent so far.

    Attributes:
        sent_bytes: Bytes handed to the network, headers of ours included.
        messages: Messages handed to the network.
    """

    sent_bytes: int
    messages: int


class Transport(ABC):
    """Moves bytes between `size` ranks.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        epoch: Which incarnation this is; every message carries it.
    """

    rank: int
    size: int
    epoch: int

    def attach(self, reactor: Reactor) -> None:  # noqa: B027 - only some need it
        """Learn who runs the thread that everything else is called from.

        A transport with sockets of its own has the reactor serve them.
        """

    def observe(self, on_sent: OnSent) -> None:  # noqa: B027 - only some know it
        """Have a function called with each message that has left, where that is known.

        Args:
            on_sent: Gets the name, and when the first byte and the last were handed to the network,
                on `time.perf_counter`; from any thread.
        """

    @abstractmethod
    def ordered(self, operation: Operation) -> bool:
        """Whether all ranks must launch this operation in the same total order."""

    @property
    @abstractmethod
    def sums(self) -> bool:
        """Whether `all_reduce` is offered."""

    @property
    def early(self) -> bool:
        """Whether results are reported before a device has them: each must `land` to be used."""
        return False

    def land(self, operation: Operation) -> None:  # noqa: B027 - only some are early
        """Have what the device is given from now on come after an operation that was reported."""

    @abstractmethod
    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Start an exchange; never blocks.

        Args:
            key: Its name, unique within the epoch up to 2^32 steps.
            exchange: What to send and receive.
            priority: Its number in the plan; the smallest goes first among what is ready.
            done: Called once, from any thread, with what was received or the error.
        """

    def batched(self) -> AbstractContextManager[None]:
        """Have exchanges that are started meanwhile leave in as few calls as can be."""
        return nullcontext()

    @abstractmethod
    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Start the backend's own all-reduce; never blocks. Only if `sums`."""

    @abstractmethod
    def missing(self, key: Key) -> Sequence[int]:
        """Return the ranks whose messages an unfinished exchange still waits for."""

    @property
    @abstractmethod
    def traffic(self) -> Traffic:
        """Bytes and messages sent so far."""

    @abstractmethod
    def fail(self, error: CompressaError) -> None:
        """End everything under way with an error; the transport is dead afterwards."""

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Say goodbye, end all threads and free what is held; within `timeout_s`."""


def call_failed(what: str, error: RuntimeError) -> TransportError:
    """Say in one line that a call of torch's has failed.

    Args:
        what: The call.
        error: What torch raised, mostly of many lines.
    """
    lines = str(error).strip().splitlines()
    return TransportError(f"{what} failed: {lines[0] if lines else 'unknown'}")
