"""`python -m benchmarks diloco`: our DiLoCo beside torchft's, in turns in one run.

torchft is no requirement of this package. Version 0.2.0 was measured:

    pip install torchft==0.2.0
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

import typer
from pydantic import AwareDatetime, Field, FiniteFloat, PositiveInt

from benchmarks.diloco_rank import (
    ALONE,
    BATCH,
    DENSE,
    METHODS,
    TORCHFT,
    Cell,
    ours,
    perceptron,
    statements,
    theirs,
)
from benchmarks.hosts import Processors, opened_hosts
from compressa.errors import BackendUnavailable
from compressa.link.texts import ms_text
from compressa.machine import now
from compressa.testbed import NetnsTestbed, check_links
from harness import records
from harness.ranks import Ranks
from harness.records import NotNegative, Positive
from harness.runner import JsonFile, Shown, Update, What, carry_out, given, refuse_unmatched
from harness.start import started_ranks
from harness.tables import Table, table_of

LINKS = ("unshaped", "100mbit")
EVERY, FRAGMENTS = (20, 50), (1, 2)
_HOSTS = 2
_DEADLINE_S = 120.0


class Row(records.Row):
    """Rounds by one method; of seconds those of the slower rank.

    `meeting_s` is what training waits for in all meetings of a round, by round; `counted_bytes`
    what the busier host's interface has carried in a round in its busier direction, all headers
    and heartbeats included. Of what is compared, `differences` are the largest between parameters
    of ours and torchft's after each outer step, and `errors` the largest between each outer step
    and the same one by torch's SGD, both since the beginning, the first round included, which is
    not timed; `largest` is the largest parameter, in float32. `load` is the share of the machine's
    processors that were busy.
    """

    link: str
    every: PositiveInt
    fragments: PositiveInt
    method: str
    round_s: Annotated[tuple[Positive, ...], Field(min_length=1)]
    meeting_s: tuple[FiniteFloat, ...]
    counted_bytes: NotNegative
    differences: tuple[NotNegative, ...] = ()
    errors: tuple[NotNegative, ...] = ()
    largest: NotNegative | None = None
    load: NotNegative
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is of."""
        return self.link, self.every, self.fragments, self.method


class Header(records.Header):
    """Where, when and how."""

    format: Literal["compressa.bench.diloco"] = "compressa.bench.diloco"
    threads_per_rank: Literal[1] = 1
    hosts: Literal[2] = 2
    parameters: PositiveInt


class DiLoCoMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks diloco"

    header: Header
    rows: list[Row] = Field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be measured.

    Attributes:
        links: Speeds of the hosts' links, as `LinkSpec` writes them.
        every: Steps of a round (H).
        fragments: How many.
        rounds: That are timed.
        pattern: That names of methods match.

    Raises:
        ConfigError: No name does.
    """

    links: Sequence[str] = LINKS
    every: Sequence[int] = EVERY
    fragments: Sequence[int] = FRAGMENTS
    rounds: int = 3
    pattern: str = "*"

    def __post_init__(self) -> None:
        """Refuse a pattern that no name matches."""
        refuse_unmatched("--what", self.pattern, METHODS)

    @property
    def methods(self) -> list[str]:
        """Those that take turns."""
        return [name for name in METHODS if fnmatchcase(name, self.pattern)]


class DiLoCoBench:
    """Measures all methods of a cell in turns.

    Args:
        settings: What is to be measured.

    Attributes:
        found: What was measured so far.

    Raises:
        BackendUnavailable: torchft is wanted, and is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        wanted = any(METHODS[name].torchft is not None for name in settings.methods)
        if wanted and importlib.util.find_spec("torchft") is None:
            raise BackendUnavailable("torchft is not installed: pip install torchft==0.2.0")
        versions = {"torch": version("torch")} | ({"torchft": version("torchft")} if wanted else {})
        parameters = sum(p.numel() for p in perceptron().parameters())
        self.found = DiLoCoMeasurement(header=Header.here(versions, parameters=parameters))
        self._settings = settings

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, each time that there is a row more.

        Raises:
            BackendUnavailable: There are no network namespaces here; the message says why.
            TransportError: A rank died or failed, or the links do not hold their rate.
        """
        settings = self._settings
        yield "bringing hosts up"
        with (
            opened_hosts(_HOSTS, settings.links[0]) as bed,
            started_ranks(bed, "benchmarks.diloco_rank:Training", deadline_s=_DEADLINE_S) as ranks,
        ):
            for link in settings.links:
                bed.set_link(link)
                check_links(bed)
                for every, fragments in itertools.product(settings.every, settings.fragments):
                    cell = Cell(every, fragments, [host.address for host in bed.hosts])
                    yield f"{bed.link}, H = {every}, fragments = {fragments}"
                    self.found.rows.extend(self._rows(bed, ranks, cell))

    def _rows(self, bed: NetnsTestbed, ranks: Ranks, cell: Cell) -> list[Row]:
        """Measure a cell; the first round of each method finds its way, and is not timed."""
        methods = self._settings.methods
        told: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
        compared: list[dict[str, Any]] = []
        ranks.ask("open", methods=methods, cell=cell)
        for _ in range(self._settings.rounds + 1):
            for name in methods:
                told[name].append(_turn(bed, ranks, name))
            if {DENSE, TORCHFT} <= set(methods):
                compared.append(ranks.ask("compare"))
        ranks.ask("close")
        return [
            Row(
                link=str(bed.link),
                every=cell.every,
                fragments=cell.fragments,
                method=name,
                round_s=tuple(turn["round_s"] for turn in turns),
                meeting_s=() if name == ALONE else tuple(turn["meeting_s"] for turn in turns),
                counted_bytes=median(turn["counted_bytes"] for turn in turns),
                **_compared(name, compared),
                load=median(turn["load"] for turn in turns),
                timestamp=now(),
            )
            for name, (_, *turns) in told.items()
        ]


def _compared(name: str, compared: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a row has of comparisons; that of ours has what concerns both."""
    if not compared or name not in (DENSE, TORCHFT):
        return {}
    found = {"errors": [error for one in compared for error in one[name]]}
    if name == TORCHFT:
        return found
    apart = [difference for one in compared for difference in one["differences"]]
    return {**found, "differences": apart, "largest": max(one["largest"] for one in compared)}


def _turn(bed: NetnsTestbed, ranks: Ranks, method: str) -> dict[str, float]:
    """Have all ranks train for a round."""
    before, processors = bed.counters(), Processors()
    told = ranks.ask("round", method=method)
    load = processors.load()
    carried = [
        max(now_.tx_bytes - then.tx_bytes, now_.rx_bytes - then.rx_bytes)
        for now_, then in zip(bed.counters(), before, strict=True)
    ]
    return {**told, "counted_bytes": max(carried), "load": load}


def shown(measured: DiLoCoMeasurement) -> Shown:
    """Yield a table for each link, how far iterates are apart, and what a user adds."""
    yield (
        f"A perceptron of {measured.header.parameters:,} parameters, batches of {BATCH}, AdamW, "
        f"outer SGD with Nesterov momentum (0.7, 0.9), {_HOSTS} ranks with a thread each. "
        "Of a round: bytes at the busier host, what training waits for in all its meetings, and "
        "all of it; medians of rounds, F is the number of fragments."
    )
    for link in dict.fromkeys(row.link for row in measured.rows):
        yield _table(link, [row for row in measured.rows if row.link == link])
    if any(row.differences for row in measured.rows):
        yield _agreement(measured.rows)
    yield (
        f"A user adds {statements(ours)} statements for ours, and {statements(theirs)} for "
        "torchft's, besides a lighthouse that runs somewhere."
    )


def _agreement(rows: Sequence[Row]) -> str:
    compared = [row for row in rows if row.differences]
    first = max(row.differences[0] for row in compared)
    last = max(max(row.differences) for row in compared)
    error = {
        name: max(max(row.errors) for row in rows if row.errors and row.method == name)
        for name in (DENSE, TORCHFT)
    }
    largest = max(row.largest or 0.0 for row in compared)
    steps = max(len(row.differences) for row in compared)
    return (
        f"Without compression, parameters of ours and of torchft's differ by {first:.1e} at most "
        f"after the first outer step, and by {last:.1e} after any of the first "
        f"{steps}; the largest is {largest:.2f}. Each outer step by itself differs "
        f"from the same one by torch's SGD by {error[DENSE]:.1e} (ours) and "
        f"{error[TORCHFT]:.1e} (torchft's) at most."
    )


def _table(link: str, rows: Sequence[Row]) -> Table:
    cells = {(row.every, row.fragments): None for row in rows}
    by_method = {
        name: {(row.every, row.fragments): row for row in rows if row.method == name}
        for name in dict.fromkeys(row.method for row in rows)
    }
    columns: dict[str, Callable[[str], str]] = {"method": str}
    first = next(iter(cells))
    columns["kB"] = lambda name: f"{by_method[name][first].counted_bytes / 1e3:,.0f}"

    def of(cell: tuple[int, int], what: Literal["meeting_s", "round_s"]) -> Callable[[str], str]:
        def text(name: str) -> str:
            values = getattr(by_method[name][cell], what)
            return ms_text(median(values)) if values else "-"

        return text

    for every, fragments in cells:
        named = f"H = {every}, F = {fragments}"
        columns[f"{named}: meetings, ms"] = of((every, fragments), "meeting_s")
        columns[f"{named}: round, ms"] = of((every, fragments), "round_s")
    return table_of(link, by_method, columns)


Links = Annotated[
    list[str] | None,
    typer.Option("--link", help=f"Several times; {', '.join(LINKS)} if left out."),
]
Every = Annotated[
    list[int] | None,
    typer.Option(min=2, help=f"Steps of a round, several times; {EVERY} if left out."),
]
Fragments = Annotated[
    list[int] | None,
    typer.Option(min=1, help=f"Several times; {FRAGMENTS} if left out."),
]
Rounds = Annotated[int, typer.Option(min=1, help="That are timed, of each method.")]


def diloco(
    link: Links = None,
    every: Every = None,
    fragments: Fragments = None,
    rounds: Rounds = 3,
    what: What = "*",
    json_file: JsonFile = None,
    update: Update = None,
) -> None:
    """Time rounds of DiLoCo, ours and torchft's, on two hosts; methods take turns in one run.

    Takes some four minutes. Needs torchft (pip install torchft==0.2.0) and network namespaces:
    Linux, and root or user namespaces.
    """
    settings = Settings(
        rounds=rounds, pattern=what, **given(links=link, every=every, fragments=fragments)
    )
    carry_out(DiLoCoBench(settings), shown, json_file, update)
