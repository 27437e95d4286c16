"""BackendSum: dense sums by Gloo's own all-reduce, beside a transport of named messages."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

from compressa.collectives.base import BackendAllReduce
from compressa.errors import TransportError
from compressa.transports.base import Done, call_failed


class BackendSum:
    """Launches sums on a process group that nobody else uses.

    Args:
        group: A Gloo process group; all ranks launch the same sums in the same order.

    Attributes:
        sent_bytes: What a ring must have sent for the sums so far; Gloo does not tell.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group: dist.ProcessGroup | None = group
        self._lock = threading.Lock()
        self._under_way = 0
        self._closed = False
        self.sent_bytes = 0

    def close(self) -> None:
        """Let go of the group when no sum is under way any more; waits for none.

        A sum that is launched afterwards fails with a `TransportError`. From any thread.
        """
        with self._lock:
            self._closed = True
            self._let_go()

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Start Gloo's own all-reduce of a tensor on the CPU, in place; does not block.

        Args:
            operation: Its tensor has a dtype that Gloo sums, and is as long on every rank.
            done: Called once, from a thread of Gloo's or before this returns, with {} or with the
                `TransportError` of the call. Gloo's own timeout is all that ends a sum.
        """
        if self._group is None:
            done(TransportError("the transport is closed"))
            return
        tensor, size = operation.tensor, self._group.size()
        self.sent_bytes += 2 * tensor.numel() * tensor.element_size() * (size - 1) // size
        try:
            work = self._group.allreduce([tensor])
        except RuntimeError as error:
            done(call_failed("the backend's all-reduce", error))
            return
        with self._lock:
            self._under_way += 1
        work.get_future().add_done_callback(lambda future: self._report(future, done))

    def _report(self, future: torch.futures.Future[object], done: Done) -> None:
        with self._lock:
            self._under_way -= 1
            self._let_go()
        try:
            future.value()
        except RuntimeError as error:
            done(call_failed("the backend's all-reduce", error))
            return
        done({})

    def _let_go(self) -> None:
        if self._closed and not self._under_way:
            self._group = None
