"""MpiSum: dense sums by MPI's own all-reduce.

They are worked out in memory of their own, in pieces: nothing ends an all-reduce of MPI, and it
would write to gradients after their owner has heard of a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from compressa.collectives.base import BackendAllReduce
from compressa.transports.base import Done
from compressa.transports.mpi_requests import Requests

if TYPE_CHECKING:
    from mpi4py import MPI

_PIECE_BYTES = 4 << 20
_TYPES = {
    torch.float16: "FLOAT16_T",
    torch.bfloat16: "BFLOAT16_T",
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int8: "INT8_T",
    torch.uint8: "UINT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
}


class MpiSum:
    """Launches sums; all ranks launch the same ones in the same order.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: The communicator.
        requests: Calls back when a piece is done.

    Attributes:
        sent_bytes: What a ring must have sent for the sums so far; MPI does not tell.
    """

    def __init__(self, mpi: Any, comm: MPI.Intracomm, requests: Requests) -> None:
        self._comm = comm
        self._requests = requests
        self._in_place, self._op = mpi.IN_PLACE, mpi.SUM
        missing = mpi.DATATYPE_NULL
        found = {dtype: getattr(mpi, name, missing) for dtype, name in _TYPES.items()}
        self._types = {dtype: kind for dtype, kind in found.items() if kind != missing}
        self._dead = False
        self.sent_bytes = 0

    def has(self, dtype: torch.dtype) -> bool:
        """Return whether MPI can sum a dtype: float16 and bfloat16 are new, and not everywhere."""
        return dtype in self._types

    def fail(self) -> None:
        """Write to nobody's tensor any more, and call no `done`; the calls themselves go on."""
        self._dead = True

    def all_reduce(self, operation: BackendAllReduce, done: Done) -> None:
        """Start MPI's own all-reduce of a tensor on the CPU, in place and by pieces of 4 MiB.

        Args:
            operation: Its tensor is contiguous, of a dtype that MPI `has`.
            done: Called with {} by `Requests.poll`, when the sum is in the tensor.

        Raises:
            mpi4py.MPI.Exception: MPI refuses the call.
        """
        tensor, size = operation.tensor.reshape(-1), self._comm.size
        self.sent_bytes += 2 * tensor.numel() * tensor.element_size() * (size - 1) // size
        pieces = tensor.split(_PIECE_BYTES // tensor.element_size())
        finished = _after(len(pieces), lambda: done({}))
        for piece in pieces:
            own = piece.clone()
            memory = [own.view(torch.uint8).numpy().data, own.numel(), self._types[own.dtype]]
            request = self._comm.Iallreduce(self._in_place, memory, self._op)
            self._requests.add(request, partial(self._summed, piece, own, finished))

    def _summed(self, piece: torch.Tensor, own: torch.Tensor, finished: Callable[[], None]) -> None:
        if not self._dead:
            piece.copy_(own)
            finished()


def _after(count: int, call: Callable[[], None]) -> Callable[[], None]:
    """Make a function that calls another when it has been called so often."""
    left = [count]

    def once() -> None:
        left[0] -= 1
        if not left[0]:
            call()

    return once
