"""`python -m benchmarks exchange`: collectives between hosts, beside Gloo's, MPI's and the wire."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.exchange.plan import PARTS, Settings
from benchmarks.exchange.run import ExchangeBench
from benchmarks.exchange.tables import shown
from compressa.config.values import parse_bytes
from compressa.errors import ConfigError
from compressa.testbed import LinkSpec
from harness.runner import JsonFile, Update, What, carry_out, given, parts_option

Hosts = Annotated[
    list[int] | None,
    typer.Option(min=2, help="Hosts, several times, instead of those of the parts."),
]
Links = Annotated[
    list[str] | None,
    typer.Option(help="Speed of each link, several times, instead of those of the parts."),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(help='Bytes, several times, such as "64KiB" or 4e6, instead of the parts\'.'),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="2 hosts at 1 Gbit/s and three sizes: half a minute.")
]
Budget = Annotated[
    float | None, typer.Option(min=0.01, help="Seconds for a row; long operations run once.")
]
Longest = Annotated[
    float, typer.Option(min=0.1, help="Leave operations out that take more seconds.")
]

_QUICK: dict[str, Any] = {
    "parts": ["sums"],
    "hosts": [2],
    "links": ["1gbit"],
    "sizes_bytes": [1 << 10, 1 << 14, 4_000_000],
}
_BUDGET_S, _QUICK_BUDGET_S = 0.5, 0.2


def exchange(
    part: Annotated[list[str] | None, parts_option(PARTS)] = None,
    hosts: Hosts = None,
    link: Links = None,
    size: Sizes = None,
    what: What = "*",
    json_file: JsonFile = None,
    update: Update = None,
    quick: Quick = False,
    budget: Budget = None,
    longest: Longest = 10.0,
) -> None:
    """Time collectives between hosts on shaped links, side by side in one run.

    Ours, Gloo's own and, with the extra bench-peers and as root, MPI's and Ray's own; one rank on
    each host, one thread for each rank. "Of line rate" is the time that the bytes of a method's
    formula take in one plain TCP stream, over the time taken; docs/benchmarks/exchange.md
    says how it is measured.

    Parts, and their minutes: sums (20), compressed (2), server (3), broadcast (3), transfer (3),
    striping (1), hosts (4). Needs network namespaces: Linux, and root or user namespaces.
    """
    chosen = given(
        parts=part,
        hosts=hosts,
        links=[str(LinkSpec.parse(text)) for text in link or ()],
        sizes_bytes=[_bytes(text) for text in size or ()],
    )
    settings = Settings(
        budget_s=budget or (_QUICK_BUDGET_S if quick else _BUDGET_S),
        longest_s=longest,
        pattern=what,
        **(_QUICK if quick else {}) | chosen,
    )
    carry_out(ExchangeBench(settings), shown, json_file, update)


def _bytes(text: str) -> int:
    try:
        found = float(text) if "e" in text.lower() else parse_bytes(text)
        size_bytes = int(found)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--size {error}") from error
    if size_bytes < 4 or size_bytes % 4 or size_bytes != found:
        raise ConfigError(f"--size: {text} is no size of a vector of float32: give a multiple of 4")
    return size_bytes
