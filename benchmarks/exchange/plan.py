"""Plan: the tables of all that is compared, and which rows of them are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from benchmarks.exchange.means import Compressed, Served
from benchmarks.exchange.method import Method
from benchmarks.exchange.sums import Gather, Sum
from benchmarks.exchange.transfers import Broadcast, Transfer
from compressa.collectives.algorithms import ALGORITHMS
from compressa.collectives.broadcast import BROADCASTS
from harness import runner
from harness.runner import refuse_unmatched

ALGORITHM_SUMS = [Sum(name, "compressa", row.stages) for name, row in ALGORITHMS.items()]
GLOO_SUM = Sum("gloo all_reduce", "gloo")
SUMS: Sequence[Method] = (
    *ALGORITHM_SUMS,
    Sum("auto", "compressa"),
    Gather("all_gather", "compressa"),
    GLOO_SUM,
    Gather("gloo all_gather", "gloo"),
    Sum("mpi Allreduce", "mpi"),
    Gather("mpi Allgather", "mpi"),
)
"""`auto` is what the engine chooses."""

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
    *(Broadcast.ours(name, sources) for sources in (1, 4) for name in ("auto", *BROADCASTS)),
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


class Cell(NamedTuple):
    """One row that is wanted.

    Attributes:
        part: Name of the part.
        method: What is measured.
        size_bytes: Of what.
        rounds: How often; 0 for as often as the budget allows.
    """

    part: str
    method: Method
    size_bytes: int
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Settings(runner.Settings):
    """What is to be measured; what is left out is as the parts have it.

    Attributes:
        hosts: Numbers of hosts.
        links: Speeds of their links, as `LinkSpec` writes them.
        sizes_bytes: Of what is summed, or of what each rank gives.
        longest_s: Longest operation, by its formula; the more bytes a method needs than the best,
            the shorter is its own.

    Raises:
        ConfigError: There is no such part, or no method of that name in it.
    """

    known: ClassVar[Sequence[str]] = tuple(PARTS)

    parts: Sequence[str] = known
    budget_s: float = 0.5
    hosts: Sequence[int] = ()
    links: Sequence[str] = ()
    sizes_bytes: Sequence[int] = ()
    longest_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        super().__post_init__()
        wanted = [method.name for name in self.parts for method in PARTS[name].methods]
        refuse_unmatched("--what", self.pattern, wanted)

    def chosen(self) -> Mapping[str, Part]:
        """Return the parts with methods that match, changed as these settings say."""
        found: dict[str, Part] = {}
        for name in self.parts:
            part = PARTS[name]
            found[name] = replace(
                part,
                methods=[method for method in part.methods if self.matches(method.name)],
                hosts=self.hosts or part.hosts,
                links=self.links or part.links,
                sizes_bytes=self.sizes_bytes or part.sizes_bytes,
            )
        return {name: part for name, part in found.items() if part.methods}

    def all_hosts(self) -> list[int]:
        """Return the numbers of hosts, in ascending order."""
        return sorted({hosts for part in self.chosen().values() for hosts in part.hosts})

    def links_of(self, hosts: int) -> list[str]:
        """Return the links that so many hosts are measured on."""
        return list(dict.fromkeys(link for part in self._on(hosts) for link in part.links))

    def most_bytes(self, hosts: int) -> int:
        """Return the largest size on so many hosts."""
        return max(size for part in self._on(hosts) for size in part.sizes_bytes)

    def _on(self, hosts: int) -> list[Part]:
        return [part for part in self.chosen().values() if hosts in part.hosts]

    def cells(self, hosts: int, link: str, wanted: Callable[[Method], bool]) -> Iterator[Cell]:
        """Yield the rows of one network, all methods of a size one after the other.

        So a noisy time disturbs all methods alike.

        Args:
            hosts: How many there are.
            link: Speed of their links.
            wanted: Whether a method's rows are.
        """
        for name, part in self.chosen().items():
            for size_bytes in part.sizes_bytes:
                if hosts in part.hosts and link in part.links:
                    for method in filter(wanted, part.methods):
                        yield Cell(name, method, size_bytes, part.rounds)
