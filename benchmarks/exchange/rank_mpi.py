"""One rank of MPI's, which mpiexec starts: argv[1] is the driver's socket.

It imports no torch, and sums NumPy's arrays from buffer to buffer.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.hosts.wire import Wire
from compressa.link.chain import Ask, timed

Call = Callable[[], object]


def main() -> None:
    """Measure rows until the driver has no more."""
    from mpi4py import MPI  # which initialises it

    comm = MPI.COMM_WORLD

    def answer(message: Any) -> dict[str, Any]:
        gc.collect()
        ask = Ask(*message)
        call, verify = _MAKE[ask.what](MPI, ask.size_bytes)
        found = timed(
            call,
            verify,
            comm.Barrier,
            lambda seconds: float(comm.allreduce(seconds, MPI.MAX)),
            ask.budget_s,
            ask.rounds,
        )
        return found._asdict()

    version = MPI.Get_library_version().splitlines()[0].rstrip("\0")
    Wire(sys.argv[1], comm.rank).serve(" ".join(version.split()), answer)


def _sum(mpi: Any, size_bytes: int) -> tuple[Call, Call]:
    comm = mpi.COMM_WORLD
    values = _own(comm, size_bytes)

    def verify() -> None:
        if (values != comm.size * (comm.size + 1) / 2).any():
            raise ArithmeticError("MPI has summed wrongly")
        values.fill(0)

    return lambda: comm.Allreduce(mpi.IN_PLACE, values), verify


def _gather(mpi: Any, size_bytes: int) -> tuple[Call, Call]:
    comm = mpi.COMM_WORLD
    values = _own(comm, size_bytes)
    parts = np.empty((comm.size, values.size), np.float32)

    def verify() -> None:
        if (parts != np.arange(1, comm.size + 1, dtype=np.float32)[:, None]).any():
            raise ArithmeticError("MPI has brought the wrong bytes")

    return lambda: comm.Allgather(values, parts), verify


def _broadcast(mpi: Any, size_bytes: int) -> tuple[Call, Call]:
    comm = mpi.COMM_WORLD
    values = _own(comm, size_bytes)
    return lambda: comm.Bcast(values), lambda: _verify_first(values)


def _send(mpi: Any, size_bytes: int) -> tuple[Call, Call]:
    comm = mpi.COMM_WORLD
    values = _own(comm, size_bytes)
    if comm.rank == 0:
        return lambda: comm.Send(values, 1), _nothing
    if comm.rank == 1:
        return lambda: comm.Recv(values, 0), lambda: _verify_first(values)
    return _nothing, _nothing


_MAKE: dict[str, Callable[[Any, int], tuple[Call, Call]]] = {
    "mpi Allreduce": _sum,
    "mpi Allgather": _gather,
    "mpi Bcast": _broadcast,
    "mpi Send": _send,
}


def _own(comm: Any, size_bytes: int) -> npt.NDArray[np.float32]:
    return np.full(max(size_bytes // 4, 1), comm.rank + 1, np.float32)


def _verify_first(values: npt.NDArray[np.float32]) -> None:
    if (values != 1).any():
        raise ArithmeticError("MPI has not brought the first rank's values")


def _nothing() -> None:
    """There is nothing to do, or to see."""


if __name__ == "__main__":
    main()
