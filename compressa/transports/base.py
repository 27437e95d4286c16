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
from typing import TYPE_CHECKING, NamedTuple

import torch

from compressa.collectives.base import BackendAllReduce, Exchange, LoweredSum, Operation
from compressa.collectives.lowering import Table
from compressa.errors import CompressaError, TransportError
from compressa.transports.reactor import Reactor

if TYPE_CHECKING:
    from compressa.transports.lowered.fence import Fence


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
OnCome = Callable[[Key, float, float], None]
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

    All calls are for the thread that runs the attached reactor, but for `observe`, `hear` and
    `attach`, which come before the first exchange, for `missing` and `traffic`, which any thread
    may ask, and for `close`, when that thread has ended.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        epoch: Which incarnation this is; every message carries it.
    """

    rank: int
    size: int
    epoch: int

    def attach(self, reactor: Reactor) -> None:  # noqa: B027 - only some need it
        """Learn who runs the thread that everything else is called from; once, before all else.

        A transport with sockets of its own has the reactor serve them.

        Args:
            reactor: It must run for as long as exchanges are to be done; `close` may poll it.
        """

    def observe(self, on_sent: OnSent | None) -> None:  # noqa: B027 - only some know it
        """Have a function called with each message that has left, where that is known.

        Args:
            on_sent: Gets the name, and when the first byte and the last were handed to the network,
                on `time.perf_counter`; from any thread. None for nobody, from the next message on.
        """

    def hear(self, on_come: OnCome | None) -> None:  # noqa: B027 - only some know it
        """Have a function called with each message that has come whole, where that is known.

        Args:
            on_come: Gets the name, and when the first byte and the last were found to be here, on
                `time.perf_counter`; on the thread that takes the last. None for nobody. What has
                begun to come by now is not told.
        """

    @abstractmethod
    def ordered(self, operation: Operation) -> bool:
        """Return whether all ranks must launch this operation in the same total order.

        Args:
            operation: An `Exchange` or a `BackendAllReduce`; others are no transport's.
        """

    @property
    @abstractmethod
    def sums(self) -> bool:
        """Whether `all_reduce` is offered; fixed when the transport is opened."""

    @property
    def early(self) -> bool:
        """Whether results are reported before a device has them: each must `land` to be used.

        Such a transport keeps deadlines itself.
        """
        return False

    def begun(self, operation: Operation) -> bool:
        """Return whether a device has come so far that an operation could begin.

        From then on its deadline counts: what the device was given before may take its time.

        Args:
            operation: One that was launched, and not reported.
        """
        return True

    def land(self, operation: Operation) -> None:  # noqa: B027 - only some are early
        """Have what the device is given from now on come after an operation that was reported.

        Args:
            operation: One that `done` was called for; once for each, and only if `early`.
        """

    @abstractmethod
    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Start an exchange; never blocks.

        Its buffers are lent until `done` is called: those that are sent must not change, and those
        that are received into must not be read.

        Args:
            key: Its name, unique within the epoch up to 2^32 steps.
            exchange: What to send and receive, as uint8.
            priority: Its number in the plan; the smallest goes first among what is ready.
            done: Called once, from any thread, with what was received or the error; before this
                returns, if there is nothing to wait for. When the transport fails it may not be
                called any more: the driver ends its programs itself.

        Raises:
            PayloadError: What a peer had sent ahead does not fit, or this is longer than the
                receiver's buffer.
        """

    def fence(self) -> Fence | None:
        """Return a new fence for `exchange_at`, which a GPU must come to; None if there is none."""
        return None

    def exchange_at(
        self, fence: Fence, key: Key, exchange: Exchange, priority: int, done: Done
    ) -> None:
        """Start an exchange when a GPU has come to a fence, without a thread of Python in between.

        Args:
            fence: Of `fence`, given to a stream already.
            key: As all else, see `exchange`.
            exchange: What is sent need not be there before the fence is reached.
            priority: As in `exchange`.
            done: As in `exchange`.
        """
        raise NotImplementedError("this transport has no fences")

    def batched(self) -> AbstractContextManager[None]:
        """Have exchanges that are started meanwhile leave in as few calls as can be.

        Nothing leaves before the block ends, where a transport makes use of it.
        """
        return nullcontext()

    @abstractmethod
    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Start the backend's own all-reduce; never blocks. Only if `sums`.

        Args:
            operation: Its tensor is summed in place, and lent until `done` is called; of the same
                dtype and length on every rank, in the same order of launches.
            done: Called once, from any thread, with {} or the error.
        """

    @property
    def lowers(self) -> bool:
        """Whether there is anything that `lower` takes; fixed when the transport is opened."""
        return False

    def lower(self, table: Table, dtype: torch.dtype) -> object | None:
        """Return what runs a table of hops in `sum`, once at a time; None if nothing here does.

        From any thread. All ranks get one, or none does.

        Args:
            table: Of a sum of plain values.
            dtype: Theirs.
        """
        return None

    def sum(self, key: Key, stride: int, operation: LoweredSum, priority: int, done: Done) -> None:
        """Start a lowered sum; never blocks. Only of what `lower` returned.

        Args:
            key: Name of its first exchange.
            stride: By how much the stages of the next ones are larger.
            operation: Its values are lent until `done` is called. What `sum_now` has begun goes on.
            priority: As in `exchange`.
            done: Called once, with {} or the error.
        """
        raise NotImplementedError("nothing is lowered for this transport")

    def sum_now(self, key: Key, operation: LoweredSum) -> bool:
        """Run a lowered sum on the caller's thread, if nothing else is under way, for a short time.

        Args:
            key: Name of its first exchange.
            operation: What `lower` returned.

        Returns:
            Whether it is done. If not, `sum` is to go on with it.
        """
        return False

    @abstractmethod
    def missing(self, key: Key) -> Sequence[int]:
        """Return the ranks whose messages an unfinished exchange still waits for; from any thread.

        Args:
            key: The exchange's. Where nobody can tell, all others are missing.
        """

    @property
    @abstractmethod
    def traffic(self) -> Traffic:
        """Bytes and messages sent so far, sums of the backend included; from any thread."""

    @abstractmethod
    def fail(self, error: CompressaError) -> None:
        """End everything under way with an error; the transport is dead afterwards.

        No message that comes later is written to a buffer that was lent. Only calls of a library
        that nothing can end, such as Gloo's sums, may go on.

        Args:
            error: Why. If it is a `PeerLost`, no goodbye of that rank is waited for.
        """

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Say goodbye, end all threads and free what is held.

        Args:
            timeout_s: Longest wait for the other ranks' goodbyes; without them it closes as well.

        Raises:
            TransportError: A library does not let go of what it holds.
        """


def call_failed(what: str, error: RuntimeError) -> TransportError:
    """Return an error that says in one line that a call of a library has failed.

    Args:
        what: The call, as the beginning of a sentence.
        error: What was raised, mostly of many lines; the first one is told.
    """
    lines = str(error).strip().splitlines()
    return TransportError(f"{what} failed: {lines[0] if lines else 'unknown'}")
