"""Parts: what the benchmark consists of, each of which can be measured alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.exchange import methods
from benchmarks.exchange.method import Method

GRADIENTS_BYTES = 17_100_000
"""Of a model of 4.3 million parameters."""

LARGE_BYTES = 100_000_000
_ROUNDS, _FEW_ROUNDS = 25, 7
_SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 4_000_000, 16_000_000, LARGE_BYTES)


@dataclass(frozen=True)
class Part:
    """A grid of rows.

    Attributes:
        about: What it shows, and how long it takes.
        methods: That are compared.
        hosts: Numbers of hosts.
        links: Speeds of their links, as `LinkSpec` writes them.
        sizes_bytes: As the methods take them.
        rounds: How often each operation is done; 0 for as often as the budget allows.
    """

    about: str
    methods: Sequence[Method]
    hosts: Sequence[int]
    links: Sequence[str]
    sizes_bytes: Sequence[int]
    rounds: int = 0


_SHAPED = ("100mbit", "1gbit")
PARTS: Mapping[str, Part] = {
    "sums": Part(
        "sums and gathers of plain values, by size",
        methods.SUMS,
        (2, 4, 8),
        (*_SHAPED, "unshaped"),
        _SIZES,
    ),
    "compressed": Part(
        "compressed gradients through the engine, beside Gloo's float32",
        (methods.GLOO_SUM, *methods.COMPRESSED),
        (4,),
        _SHAPED,
        (GRADIENTS_BYTES,),
        _FEW_ROUNDS,
    ),
    "server": Part(
        "a value pushed to a parameter server and pulled, beside Gloo's sum over all hosts",
        (methods.GLOO_SUM, *methods.SERVER),
        (4,),
        _SHAPED,
        (4_000_000, 16_000_000),
        _FEW_ROUNDS,
    ),
    "broadcast": Part(
        "100 MB from one source, and from four",
        methods.BROADCAST,
        (8,),
        _SHAPED,
        (LARGE_BYTES,),
    ),
    "transfer": Part(
        "100 MB from host to host, beside torch, MPI and Ray",
        methods.TRANSFER,
        (2,),
        ("1gbit", "unshaped"),
        (LARGE_BYTES,),
        _ROUNDS,
    ),
    "striping": Part(
        "a message over several connections, each of which is limited",
        methods.STRIPING,
        (2,),
        ("250mbit of 1gbit",),
        (25_000_000,),
    ),
    "hosts": Part(
        "what each added host costs: 2 to 8, and up to 1,024 on a virtual clock",
        methods.ALGORITHM_SUMS,
        (2, 3, 4, 6, 8),
        ("100mbit",),
        (1 << 10, 4_000_000),
    ),
}
