"""A transport for tests: every exchange is one group call of Gloo's, in an order that ranks share.

It stands in for NCCL where there are no GPUs. Each message begins with a frame header, so that
ranks whose orders differ find out instead of averaging unrelated tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import CompressaError, PayloadError, TransportError
from compressa.transports.backend_sum import BackendSum
from compressa.transports.base import Done, Key, Received, Traffic, Transport, call_failed
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind, read_frame, way
from compressa.transports.setup import Setup
from compressa.transports.table import Entry


class GlooGroupTransport(Transport):
    """Exchanges as `all_to_all_single` on a Gloo process group of its own.

    A wait ends at the group's own timeout; a peer that is lost ends it at once, without a name.

    Args:
        group: A Gloo process group of its own.
        epoch: Epoch of the transport.
    """

    def __init__(self, group: dist.ProcessGroup, epoch: int) -> None:
        self.rank = group.rank()
        self.size = group.size()
        self.epoch = epoch
        self._group: dist.ProcessGroup | None = group
        self._sum = BackendSum(group)
        self._sent_bytes = 0
        self._messages = 0
        self._under_way: set[Key] = set()
        self._closed = False
        self._lock = threading.Lock()

    def ordered(self, operation: Operation) -> bool:
        """Return True for exchanges as for sums: a call matches the others' by its order alone."""
        return isinstance(operation, BackendAllReduce | Exchange)

    @property
    def sums(self) -> bool:
        """True: Gloo has an all-reduce."""
        return True

    def exchange(self, key: Key, exchange: Exchange, priority: int, done: Done) -> None:
        """Launch one all-to-all; see `Transport.exchange`.

        Messages that are shorter than their buffers are padded. `done` is called from a thread of
        Gloo's; with a `PayloadError` where a peer has launched another exchange.

        Raises:
            PayloadError: A message is longer than `capacity_bytes` says that its receiver expects.
        """
        outgoing, in_lengths = self._pack(key, exchange)
        out_lengths = [
            FRAME_HEADER_BYTES + exchange.incoming[p].numel() if p in exchange.incoming else 0
            for p in range(self.size)
        ]
        landed = torch.empty(sum(out_lengths), dtype=torch.uint8)
        self._sent_bytes += outgoing.numel()
        self._messages += len(exchange.outgoing)

        def unpack() -> Received:
            return self._unpack(key, exchange, torch.split(landed, out_lengths))

        if self._group is None:
            done(TransportError("the transport is closed"))
            return
        try:
            work = self._group.alltoall_base(landed, outgoing, out_lengths, in_lengths)
        except RuntimeError as error:
            done(call_failed("a group call", error))
            return
        self._when_done(work, key, unpack, done)

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Launch Gloo's own sum; see `Transport.all_reduce`."""
        self._sum.all_reduce(operation, done)

    def missing(self, key: Key) -> Sequence[int]:
        """Return everyone else while the exchange is under way: a group call does not tell."""
        return [p for p in range(self.size) if p != self.rank] if key in self._under_way else []

    @property
    def traffic(self) -> Traffic:
        """Bytes of all-to-alls with their padding, and what a ring must have sent for sums."""
        return Traffic(self._sent_bytes + self._sum.sent_bytes, self._messages)

    def fail(self, error: CompressaError) -> None:
        """Do nothing: group calls end by themselves, at the group's timeout."""

    def close(self, timeout_s: float) -> None:
        """Let go of the group when no call is under way any more; waits for none."""
        self._sum.close()
        with self._lock:
            self._closed = True
            self._let_go()

    def _pack(self, key: Key, exchange: Exchange) -> tuple[torch.Tensor, list[int]]:
        """Lay out headers and messages; a peer's share is as long as its buffer for it."""
        parts, lengths = [], [0] * self.size
        for peer in range(self.size):
            data = exchange.outgoing.get(peer)
            if data is None:
                continue
            size = exchange.capacity_bytes[peer]
            # Gloo aborts the process of a receiver whose buffer is too small.
            if data.numel() > size:
                raise PayloadError(
                    f"rank {self.rank} has {data.numel()} bytes for rank {peer}, which expects "
                    f"at most {size}"
                )
            part = torch.zeros(FRAME_HEADER_BYTES + size, dtype=torch.uint8)
            frame = Frame(Kind.DATA, self.epoch, key, data.numel(), 0, data.numel())
            frame.write(part.numpy(), data.numpy().data)
            part[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + data.numel()].copy_(data)
            parts.append(part)
            lengths[peer] = part.numel()
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8), lengths

    def _unpack(self, key: Key, exchange: Exchange, parts: Sequence[torch.Tensor]) -> Received:
        received = {}
        for peer, buffer in exchange.incoming.items():
            part = parts[peer]
            memory, link = part.numpy().data, way(peer, self.rank, "gloo-group")
            frame = read_frame(memory, self.epoch, buffer.numel(), link)
            if frame.key != key._replace(step=key.step & 0xFFFFFFFF):
                raise PayloadError(
                    f"rank {peer} launched {frame.key} where this rank launched {key}: their "
                    "plans differ"
                )
            if frame != frame._replace(
                kind=Kind.DATA, message_bytes=frame.data_bytes, offset_bytes=0
            ):
                raise PayloadError(f"rank {peer} sent a part of a message in a group call: {frame}")
            if exchange.exact and frame.data_bytes != buffer.numel():
                raise PayloadError(
                    f"rank {peer} sent {frame.data_bytes} bytes where {buffer.numel()} are due"
                )
            data = slice(FRAME_HEADER_BYTES, FRAME_HEADER_BYTES + frame.data_bytes)
            frame.verify(memory[data], link)
            filled = buffer[: frame.data_bytes]
            filled.copy_(part[data])
            received[peer] = filled
        return received

    def _when_done(
        self, work: dist.Work, key: Key, unpack: Callable[[], Received], done: Done
    ) -> None:
        def report(future: torch.futures.Future[object]) -> None:
            with self._lock:
                self._under_way.discard(key)
                self._let_go()
            try:
                future.value()
                result: Received | CompressaError = unpack()
            except CompressaError as error:
                # A call that is over already reports at once: in frames that hold it.
                result = error.with_traceback(None)
            except RuntimeError as error:
                result = call_failed("a group call", error)
            done(result)

        with self._lock:
            self._under_way.add(key)
        work.get_future().add_done_callback(report)

    def _let_go(self) -> None:
        if self._closed and not self._under_way:
            self._group = None


def open_gloo_group(setup: Setup) -> GlooGroupTransport:
    """Open the transport on the setup's own group; asks the other ranks nothing."""
    return GlooGroupTransport(setup.group, setup.settings.epoch)


ROW = Entry("gloo-group", "Gloo's group calls", "_gloo_group:open_gloo_group", ordered=True)
