"""Methods: the table of all that is compared; there is a file for each shape of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from benchmarks.exchange.broadcasts import Broadcast
from benchmarks.exchange.compressed import Compressed
from benchmarks.exchange.gathers import Gather
from benchmarks.exchange.method import Method
from benchmarks.exchange.servers import Served
from benchmarks.exchange.sums import Sum
from benchmarks.exchange.transfers import Transfer
from compressa.collectives import round_robin
from compressa.collectives.algorithms import ALGORITHMS
from compressa.collectives.broadcast import Choice

SOURCES = (1, 4)
CONNECTIONS = (1, 2, 4, 8)

ALGORITHM_SUMS = [Sum(name, "compressa", row.stages) for name, row in ALGORITHMS.items()]
GLOO_SUM = Sum("gloo all_reduce", "gloo")
SUMS: Sequence[Method] = (
    *ALGORITHM_SUMS,
    Sum("scatter_reduce", "compressa", round_robin.stages),
    Sum("auto", "compressa"),
    Gather("all_gather", "compressa"),
    GLOO_SUM,
    Gather("gloo all_gather", "gloo"),
    Sum("mpi Allreduce", "mpi"),
    Gather("mpi Allgather", "mpi"),
)
"""`scatter_reduce` is the engine's, in two exchanges, and `auto` what it chooses."""

COMPRESSED: Sequence[Method] = (
    Compressed("int8", "compressa", "int8", "scatter_reduce"),
    Compressed("int4", "compressa", "int4", "scatter_reduce"),
    Compressed("int8 by all_gather", "compressa", "int8", "all_gather"),
    Compressed("none", "compressa", "none", "auto"),
)
BROADCAST: Sequence[Method] = (
    *(Broadcast.ours(name, sources) for sources in SOURCES for name in get_args(Choice)),
    Broadcast("gloo broadcast", "gloo"),
    Broadcast("mpi Bcast", "mpi"),
)
TRANSFER: Sequence[Method] = (
    Transfer("send", "compressa"),
    Transfer.in_large_frames(),
    Transfer("torch send", "gloo"),
    Transfer("mpi Send", "mpi"),
    Transfer("ray get", "ray"),
)
SERVER: Sequence[Method] = tuple(
    method
    for name in ("none", "int8")
    for method in (
        Served.dedicated(name, workers=2, servers=1),
        Served.dedicated(name, workers=3, servers=1),
        Served.colocated(name),
    )
)
STRIPING: Sequence[Method] = tuple(map(Transfer.striped, CONNECTIONS))

METHODS: Sequence[Method] = (
    *SUMS,
    *COMPRESSED,
    *SERVER,
    *BROADCAST,
    *TRANSFER,
    *STRIPING,
)
BY_NAME = {method.name: method for method in METHODS}
