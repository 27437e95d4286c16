"""One rank of MPI's, which mpiexec starts: argv[1] is the driver's socket.

It imports neither torch nor compressa, and sums NumPy's arrays from buffer to buffer.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from compressa.bench.network.chain import timed
from compressa.bench.network.wire import Ask, Wire

Call = Callable[[], object]


def main() -> None:
    """Measure rows until the driver has no more."""
    from mpi4py import MPI  # which initialises it

    comm = MPI.COMM_WORLD

    def answer(ask: Ask) -> tuple[list[float], int]:
        gc.collect()
        elems = max(ask.size_bytes // 4, 1)
        own = np.full(elems, comm.rank + 1, np.float32)
        call, verify = (_gather if ask.what == "mpi Allgather" else _sum)(MPI, own)
        return timed(
            call,
            verify,
            comm.Barrier,
            lambda seconds: float(comm.allreduce(seconds, MPI.MAX)),
            ask.budget_s,
        )

    version = MPI.Get_library_version().splitlines()[0].rstrip("\0")
    Wire(sys.argv[1], comm.rank).serve(" ".join(version.split()), answer)


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


if __name__ == "__main__":
    main()
