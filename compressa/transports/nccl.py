"""NcclTransport: exchanges between GPUs by NCCL, through a process group of torch's.

Every exchange is one group of sends and receives between the buffers themselves. It is launched in
an order that all ranks share, and waited for by a stream, not by a thread: an exchange is reported
as done when the stream has been told to wait for it. Whether it comes to an end is looked at
from time to time, so that a lost rank is found by the engine's deadline; then the
communicator is aborted, and the stream goes on.

A message whose length only its sender knows is padded to what its receiver has room for, and
begins with its length, which a watching thread reads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError, PayloadError, Timeout, TransportError
from compressa.transports.base import Done, Key, Traffic, Transport, call_failed
from compressa.transports.reactor import Reactor
from compressa.transports.watcher import Watcher

_ABORT_S = 5.0
_WARM_UP_BYTES = 1 << 20  # small sums may go by other connections than large ones
_LENGTH_BYTES = 16  # so that what follows begins where vectors of four floats may


class _Launch(NamedTuple):
    """An exchange on the GPU's way, and the event that comes after it."""

    what: str
    since_s: float
    event: torch.cuda.Event


class NcclTransport(Transport):
    """Exchanges on a NCCL process group of its own.

    Args:
        group: A NCCL process group that nobody else uses.
        epoch: Epoch of the transport.
        stream: On which buffers are made and used; current on the thread that drives this.
    """

    def __init__(self, group: dist.ProcessGroup, epoch: int, stream: torch.cuda.Stream) -> None:
        self.rank = group.rank()
        self.size = group.size()
        self.epoch = epoch
        self._group: dist.ProcessGroup | None = group
        self._ranks = dist.get_process_group_ranks(group)
        self._stream = stream
        self._watcher: Watcher | None = None
        self._launched: deque[_Launch] = deque()
        self._sent_bytes = 0
        self._messages = 0
        self._meet()

    def _meet(self) -> None:
        """Have NCCL connect all ranks now, while every rank is there.

        It does so at the first call, and between two ranks at their first message, with the calling
        thread waiting inside; later that would be the one that looks at deadlines.
        """
        assert self._group is not None
        with torch.cuda.stream(self._stream):
            zeros = torch.zeros(_WARM_UP_BYTES // 4, device=self._stream.device)
            self._group.allreduce([zeros]).wait()
            parts = zeros.view(torch.uint8)
            outgoing = {peer: parts[16 * peer : 16 * peer + 16] for peer in self._peers}
            incoming = {peer: torch.empty_like(part) for peer, part in outgoing.items()}
            for work in self._send_and_receive(outgoing, incoming):
                work.wait()
        self._stream.synchronize()

    @property
    def _peers(self) -> list[int]:
        return [peer for peer in range(self.size) if peer != self.rank]

    def attach(self, reactor: Reactor) -> None:
        """Have lengths watched for."""
        self._watcher = Watcher(reactor.post, self._stream.device)

    def ordered(self, operation: Operation) -> bool:
        """Every call to the group is."""
        return isinstance(operation, BackendAllReduce | Exchange)

    @property
    def sums(self) -> bool:
        """NCCL has an all-reduce."""
        return True

    def exchange(self, key: Key, exchange: Exchange, place: int, done: Done) -> None:
        """Launch sends and receives; report at once, or when lengths are known."""
        self._sent_bytes += exchange.outgoing_bytes
        self._messages += len(exchange.outgoing)
        name = f"stage {key.stage} of unit {key.unit}, step {key.step}"
        if exchange.exact:
            if self._launch(name, exchange.outgoing, exchange.incoming, done):
                done(dict(exchange.incoming))
            return
        outgoing = {p: _padded(b, exchange.capacity_bytes[p]) for p, b in exchange.outgoing.items()}
        landed = {p: _room(buffer.numel(), buffer) for p, buffer in exchange.incoming.items()}
        if self._launch(name, outgoing, landed, done):
            self._when_lengths_known(landed, exchange.incoming, done)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Launch NCCL's own sum."""
        tensor = operation.tensor
        size_bytes = tensor.numel() * tensor.element_size()
        self._sent_bytes += 2 * size_bytes * (self.size - 1) // self.size
        if self._group is None:
            done(TransportError("the transport is closed"))
            return
        try:
            self._group.allreduce([tensor]).wait()
        except RuntimeError as error:
            done(call_failed("NCCL", error))
            return
        self._note("a sum of " + str(tensor.dtype))
        done({})

    def overdue(self, deadline_s: float) -> CompressaError | None:
        """Return an error if something launched has not come to its end for so long."""
        while self._launched and self._launched[0].event.query():
            self._launched.popleft()
        if not self._launched:
            return None
        first = self._launched[0]
        if time.monotonic() - first.since_s <= deadline_s:
            return None
        return Timeout(
            (),
            f"rank {self.rank} waited {deadline_s:g} s for NCCL in {first.what}; a group call does "
            "not tell whom it waits for; that step's gradients are not to be trusted, so go on "
            "from an earlier checkpoint; if a rank may be late by more, raise exchange.deadline_s",
        )

    def missing(self, key: Key) -> Sequence[int]:
        """A group call does not tell: everyone else."""
        return self._peers

    @property
    def traffic(self) -> Traffic:
        """Bytes of messages, and what sums must have sent."""
        return Traffic(self._sent_bytes, self._messages)

    def fail(self, error: CompressaError) -> None:
        """Abort the communicator: the stream, and whoever waits for it, goes on."""
        group, self._group = self._group, None
        self._launched.clear()
        if group is None:
            return
        # It waits for NCCL, which may be past helping, and raises if that takes too long.
        ending = threading.Thread(target=_abort, args=(group,), name="compressa-abort", daemon=True)
        ending.start()
        ending.join(_ABORT_S)

    def close(self, timeout_s: float) -> None:
        """Let go of the group, once what was launched has ended."""
        if self._watcher is not None:
            self._watcher.close(timeout_s)
        end_s = time.monotonic() + timeout_s
        while self.overdue(timeout_s) is None and self._launched and time.monotonic() < end_s:
            time.sleep(0.001)
        if self._launched:
            self.fail(TransportError("the transport is closed"))
        self._group = None

    def _launch(
        self,
        name: str,
        outgoing: Mapping[int, torch.Tensor],
        incoming: Mapping[int, torch.Tensor],
        done: Done,
    ) -> bool:
        """Launch one group of sends and receives; return whether that went well."""
        if self._group is None:
            done(TransportError("the transport is closed"))
            return False
        try:
            for work in self._send_and_receive(outgoing, incoming):
                work.wait()  # the stream does
        except RuntimeError as error:
            done(call_failed("NCCL", error))
            return False
        self._note(name)
        return True

    def _send_and_receive(
        self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]
    ) -> Sequence[dist.Work]:
        # In the same order on both sides: a pair of ranks matches messages by their order.
        calls: list[tuple[Any, int, torch.Tensor]] = []
        calls += [(dist.irecv, *item) for item in incoming.items()]
        calls += [(dist.isend, *item) for item in outgoing.items()]
        operations = [
            dist.P2POp(call, buffer, self._ranks[peer], self._group)
            for call, peer, buffer in calls
            if buffer.numel()
        ]
        works: list[dist.Work] = dist.batch_isend_irecv(operations) if operations else []
        return works

    def _note(self, what: str) -> None:
        event = torch.cuda.Event()
        event.record(self._stream)
        self._launched.append(_Launch(what, time.monotonic(), event))

    def _when_lengths_known(
        self, landed: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor], done: Done
    ) -> None:
        """Bring what has landed to its buffers, as much as was sent."""
        assert self._watcher is not None, "attach comes first"
        heads = torch.empty(len(landed), dtype=torch.int64, pin_memory=True)
        for head, room in zip(heads.split(1), landed.values(), strict=True):
            head.copy_(room[:8].view(torch.int64), non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)

        def bring() -> None:
            received = {}
            for (peer, room), length in zip(landed.items(), heads.tolist(), strict=True):
                buffer = incoming[peer]
                if not 0 <= length <= buffer.numel():
                    done(_wrong_length(peer, length, buffer.numel()))
                    return
                received[peer] = buffer[:length]
                received[peer].copy_(room[_LENGTH_BYTES : _LENGTH_BYTES + length])
            done(received)

        self._watcher.when(event, bring)


def _abort(group: dist.ProcessGroup) -> None:
    with contextlib.suppress(RuntimeError):
        group.abort()


def _room(size_bytes: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(_LENGTH_BYTES + size_bytes)


def _padded(data: torch.Tensor, size_bytes: int) -> torch.Tensor:
    """A message as long as its receiver expects it, its length first."""
    room = _room(size_bytes, data)
    room[:8].view(torch.int64).fill_(data.numel())
    room[_LENGTH_BYTES : _LENGTH_BYTES + data.numel()].copy_(data)
    return room


def _wrong_length(peer: int, length: int, most: int) -> PayloadError:
    return PayloadError(f"rank {peer} says that it sent {length} bytes, of at most {most}")
