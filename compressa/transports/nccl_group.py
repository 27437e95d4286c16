"""NcclGroup: the calls of a NCCL process group, each one launch, and its end by an abort.

All calls go to one communicator, which carries them out one after the other on a stream of its own.
It pairs them by their order alone: all ranks must make them in the same one. A call waits, on the
GPU, for what the current stream was given before; nothing waits for a call but the stream of ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from compressa.errors import TransportError
from compressa.transports.gpu_threads import on


class NcclGroup:
    """A NCCL process group that nobody else uses.

    Args:
        group: It.
        device: This rank's GPU.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        ends: A stream that comes after all calls, and does nothing else that takes long.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.ends = torch.cuda.Stream(device)
        self._group: dist.ProcessGroup | None = group
        self._nothing = torch.empty(0, dtype=torch.uint8, device=device)
        self._lock = threading.Lock()
        self._ending: threading.Thread | None = None

    @property
    def closed(self) -> bool:
        """Whether it was aborted."""
        return self._group is None

    def all_reduce(self, values: torch.Tensor) -> None:
        """Sum values over all ranks, in place; `ends` comes after it.

        Args:
            values: Contiguous, on this rank's GPU; of one shape and dtype on all ranks.
        """
        self._end_with(self._open().allreduce([values]))

    def all_gather(self, parts: torch.Tensor) -> None:
        """Bring every rank's part to all.

        Args:
            parts: Contiguous, of as many equal parts as there are ranks; the own one is sent.
        """
        own = parts.chunk(self.size)[self.rank]
        self._end_with(self._open()._allgather_base(parts, own))

    def exchange(
        self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]
    ) -> None:
        """Send and receive in one group; a message must be as long as what it is received into.

        What is empty is neither sent nor waited for, and a rank without messages makes no call.

        Args:
            outgoing: By peer, contiguous bytes.
            incoming: By peer, where its message goes.
        """
        if any(buffer.numel() for buffer in (*outgoing.values(), *incoming.values())):
            sent, received = self._by_rank(outgoing), self._by_rank(incoming)
            self._end_with(self._open().alltoall(received, sent))

    def abort(self, timeout_s: float) -> bool:
        """End what is under way, once, whoever asks first; later calls raise TransportError.

        Args:
            timeout_s: Longest wait for NCCL to let go.

        Returns:
            Whether it has.
        """
        with self._lock:
            group, self._group = self._group, None
            if group is not None:
                # It waits for NCCL, which may be past helping.
                self._ending = threading.Thread(
                    target=_end, args=(group,), name="compressa-abort", daemon=True
                )
                self._ending.start()
            ending = self._ending
        assert ending is not None
        ending.join(timeout_s)
        return not ending.is_alive()

    def _open(self) -> dist.ProcessGroup:
        group = self._group
        if group is None:
            raise TransportError("the transport is closed")
        return group

    def _by_rank(self, buffers: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        return [buffers.get(rank, self._nothing) for rank in range(self.size)]

    def _end_with(self, work: Any) -> None:
        """Have what comes next on the stream of ends come after this, too."""
        with on(self.ends):
            work.wait()  # the stream does


def _end(group: dist.ProcessGroup) -> None:
    with contextlib.suppress(RuntimeError):
        group.abort()
