"""Parts: the tables of all that is compared; each part can be measured alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from benchmarks.exchange.broadcasts import Broadcast
from benchmarks.exchange.compressed import Compressed
from benchmarks.exchange.method import Method
from benchmarks.exchange.servers import Served
from benchmarks.exchange.sums import Gather, Sum
from benchmarks.exchange.transfers import Transfer
from compressa.collectives import round_robin
from compressa.collectives.algorithms import ALGORITHMS
from compressa.collectives.broadcast import Choice

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
SERVER: Sequence[Method] = tuple(
    method
    for name in ("none", "int8")
    for method in (
        Served.dedicated(name, workers=2, servers=1),
        Served.dedicated(name, workers=3, servers=1),
        Served.colocated(name),
    )
)
BROADCAST: Sequence[Method] = (
    *(Broadcast.ours(name, sources) for sources in (1, 4) for name in get_args(Choice)),
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
STRIPING: Sequence[Method] = tuple(map(Transfer.striped, (1, 2, 4, 8)))

METHODS: Sequence[Method] = (*SUMS, *COMPRESSED, *SERVER, *BROADCAST, *TRANSFER, *STRIPING)
BY_NAME = {method.name: method for method in METHODS}

GRADIENTS_BYTES = 17_100_000
"""Of a model of 4.3 million parameters."""

LARGE_BYTES = 100_000_000
_SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 4_000_000, 16_000_000, LARGE_BYTES)
_SHAPED = ("100mbit", "1gbit")
_ROUNDS, _FEW_ROUNDS = 25, 7


@dataclass(frozen=True)
class Part:
    """A grid of rows.

    Attributes:
        methods: That are compared.
        hosts: Numbers of hosts.
        links: Speeds of their links, as `LinkSpec` writes them.
        sizes_bytes: As the methods take them.
        rounds: How often each operation is done; 0 for as often as the budget allows.
    """

    methods: Sequence[Method]
    hosts: Sequence[int]
    links: Sequence[str]
    sizes_bytes: Sequence[int]
    rounds: int = 0


PARTS: Mapping[str, Part] = {
    # Sums and gathers of plain values, by size.
    "sums": Part(SUMS, (2, 4, 8), (*_SHAPED, "unshaped"), _SIZES),
    # Compressed gradients through the engine, beside Gloo's float32.
    "compressed": Part((GLOO_SUM, *COMPRESSED), (4,), _SHAPED, (GRADIENTS_BYTES,), _FEW_ROUNDS),
    # A value pushed to a parameter server and pulled, beside Gloo's sum over all hosts.
    "server": Part((GLOO_SUM, *SERVER), (4,), _SHAPED, (4_000_000, 16_000_000), _FEW_ROUNDS),
    # 100 MB from one source, and from four.
    "broadcast": Part(BROADCAST, (8,), _SHAPED, (LARGE_BYTES,)),
    # 100 MB from host to host, beside torch, MPI and Ray.
    "transfer": Part(TRANSFER, (2,), ("1gbit", "unshaped"), (LARGE_BYTES,), _ROUNDS),
    # A message over several connections, each of which is limited.
    "striping": Part(STRIPING, (2,), ("250mbit of 1gbit",), (25_000_000,)),
    # What each added host costs: 2 to 8, and up to 1,024 on a virtual clock.
    "hosts": Part(ALGORITHM_SUMS, (2, 3, 4, 6, 8), ("100mbit",), (1 << 10, 4_000_000)),
}
