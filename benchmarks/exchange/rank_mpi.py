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

from compressa.link.chain import timed
from harness.wire import Wire

Call = Callable[[], object]


class Messages:
    """What such a rank can be asked for.

    Args:
        mpi: The module `mpi4py.MPI`.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi, self._comm = mpi, mpi.COMM_WORLD

    def timed(self, what: str, size_bytes: int, budget_s: float, rounds: int) -> dict[str, Any]:
        """Time a method."""
        gc.collect()
        values = np.full(max(size_bytes // 4, 1), self._comm.rank + 1, np.float32)
        call, verify = _MAKE[what](self._mpi, values)
        comm, most = self._comm, self._mpi.MAX

        def slowest(seconds: float) -> float:
            return float(comm.allreduce(seconds, most))

        return timed(call, verify, comm.Barrier, slowest, budget_s, rounds)._asdict()


def _sum(mpi: Any, values: npt.NDArray[np.float32]) -> tuple[Call, Call]:
    comm = mpi.COMM_WORLD

    def verify() -> None:
        if (values != comm.size * (comm.size + 1) / 2).any():
            raise ArithmeticError("MPI has summed wrongly")
        values.fill(0)

    return lambda: comm.Allreduce(mpi.IN_PLACE, values), verify


def _gather(mpi: Any, values: npt.NDArray[np.float32]) -> tuple[Call, Call]:
    comm = mpi.COMM_WORLD
    parts = np.empty((comm.size, values.size), np.float32)

    def verify() -> None:
        if (parts != np.arange(1, comm.size + 1, dtype=np.float32)[:, None]).any():
            raise ArithmeticError("MPI has brought the wrong bytes")

    return lambda: comm.Allgather(values, parts), verify


def _broadcast(mpi: Any, values: npt.NDArray[np.float32]) -> tuple[Call, Call]:
    return lambda: mpi.COMM_WORLD.Bcast(values), lambda: _verify_first(values)


def _send(mpi: Any, values: npt.NDArray[np.float32]) -> tuple[Call, Call]:
    comm = mpi.COMM_WORLD
    if comm.rank == 0:
        return lambda: comm.Send(values, 1), _nothing
    if comm.rank == 1:
        return lambda: comm.Recv(values, 0), lambda: _verify_first(values)
    return _nothing, _nothing


_MAKE: dict[str, Callable[[Any, npt.NDArray[np.float32]], tuple[Call, Call]]] = {
    "mpi Allreduce": _sum,
    "mpi Allgather": _gather,
    "mpi Bcast": _broadcast,
    "mpi Send": _send,
}


def _verify_first(values: npt.NDArray[np.float32]) -> None:
    if (values != 1).any():
        raise ArithmeticError("MPI has not brought the first rank's values")


def _nothing() -> None:
    """There is nothing to do, or to see."""


def main() -> None:
    """Measure rows until the driver has no more."""
    from mpi4py import MPI  # which initialises it

    version = MPI.Get_library_version().splitlines()[0].rstrip("\0")
    Wire(sys.argv[1], MPI.COMM_WORLD.rank).serve(" ".join(version.split()), Messages(MPI))


if __name__ == "__main__":
    main()
