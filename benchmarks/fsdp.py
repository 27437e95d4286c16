"""`python -m benchmarks fsdp`: FSDP2 with int8 gradients and weights beside FSDP2 in float32.

Both train the same GPT on the same text, in turns in one run, on four hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from statistics import median
from typing import Annotated, ClassVar, Literal

import typer
from pydantic import AwareDatetime, Field, PositiveInt

from benchmarks.fsdp_rank import FLOAT32, INT8, METHODS, WINDOWS, gpt
from benchmarks.hosts import Processors, opened_hosts
from compressa.link.texts import ms_text
from compressa.machine import now
from compressa.testbed import NetnsTestbed, check_links
from harness import records
from harness.ranks import Ranks
from harness.records import NotNegative, Positive
from harness.runner import JsonFile, Shown, Update, What, carry_out, given, refuse_unmatched
from harness.start import started_ranks
from harness.tables import table_of

LINKS = ("100mbit",)
LEAST_SPEED_UP, MOST_LOSS = 3.0, 1.01
_HOSTS = 4
_DEADLINE_S = 300.0


class Row(records.Row):
    """Training by one method.

    `step_s` is how long each timed step took on the slowest rank, and `counted_bytes` what the
    busiest host's interface has carried in a step in its busier direction, all headers and
    heartbeats included. `loss` is that of text that nobody has trained on, in nats per character,
    after `steps` steps. `load` is the share of the machine's processors that were busy.
    """

    link: str
    method: str
    steps: PositiveInt
    step_s: Annotated[tuple[Positive, ...], Field(min_length=1)]
    counted_bytes: NotNegative
    loss: Positive
    load: NotNegative
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is of."""
        return self.link, self.method


class Header(records.Header):
    """Where, when and how."""

    format: Literal["compressa.bench.fsdp"] = "compressa.bench.fsdp"
    threads_per_rank: Literal[1] = 1
    hosts: Literal[4] = 4
    parameters: PositiveInt


class FSDPMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks fsdp"

    header: Header
    rows: list[Row] = Field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be measured.

    Attributes:
        links: Speeds of the hosts' links, as `LinkSpec` writes them.
        turns: Of each method, that are timed; one more comes before.
        steps: Of a turn.
        pattern: That names of methods match.

    Raises:
        ConfigError: No name does.
    """

    links: Sequence[str] = LINKS
    turns: int = 5
    steps: int = 10
    pattern: str = "*"

    def __post_init__(self) -> None:
        """Refuse a pattern that no name matches."""
        refuse_unmatched("--what", self.pattern, METHODS)

    @property
    def methods(self) -> list[str]:
        """Those that take turns."""
        return [name for name in METHODS if fnmatchcase(name, self.pattern)]


class FSDPBench:
    """Measures all methods in turns.

    Args:
        settings: What is to be measured.

    Attributes:
        found: What was measured so far.
    """

    def __init__(self, settings: Settings) -> None:
        parameters = sum(p.numel() for p in gpt().parameters())
        versions = {"torch": version("torch")}
        self.found = FSDPMeasurement(header=Header.here(versions, parameters=parameters))
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
            started_ranks(bed, "benchmarks.fsdp_rank:Training", deadline_s=_DEADLINE_S) as ranks,
        ):
            for link in settings.links:
                bed.set_link(link)
                check_links(bed)
                yield str(bed.link)
                self.found.rows.extend(self._rows(bed, ranks))

    def _rows(self, bed: NetnsTestbed, ranks: Ranks) -> list[Row]:
        """Train by all methods; the first turn of each finds its way, and is not timed."""
        methods, steps = self._settings.methods, self._settings.steps
        told: dict[str, list[_Turn]] = {name: [] for name in methods}
        ranks.ask("open", methods=methods)
        for _ in range(self._settings.turns + 1):
            for name in methods:
                told[name].append(_turn(bed, ranks, name, steps))
        losses = {name: ranks.ask("loss", method=name)["loss"] for name in methods}
        ranks.ask("close")
        return [
            Row(
                link=str(bed.link),
                method=name,
                steps=steps * (self._settings.turns + 1),
                step_s=tuple(step_s for turn in turns for step_s in turn.step_s),
                counted_bytes=median(turn.counted_bytes for turn in turns) / steps,
                loss=losses[name],
                load=median(turn.load for turn in turns),
                timestamp=now(),
            )
            for name, (_, *turns) in told.items()
        ]


@dataclass(frozen=True)
class _Turn:
    """Some steps by one method."""

    step_s: Sequence[float]
    counted_bytes: int
    load: float


def _turn(bed: NetnsTestbed, ranks: Ranks, method: str, steps: int) -> _Turn:
    """Have all ranks train."""
    before, processors = bed.counters(), Processors()
    told = ranks.ask("turn", method=method, steps=steps)
    load = processors.load()
    carried = [
        max(now_.tx_bytes - then.tx_bytes, now_.rx_bytes - then.rx_bytes)
        for now_, then in zip(bed.counters(), before, strict=True)
    ]
    return _Turn(told["step_s"], max(carried), load)


def speed_up(rows: Sequence[Row]) -> float:
    """Return how many times faster a step of int8 is than one of float32."""
    step_s = {row.method: median(row.step_s) for row in rows}
    return step_s[FLOAT32] / step_s[INT8]


def relative_loss(rows: Sequence[Row]) -> float:
    """Return the loss of int8 as a share of that of float32, after as many steps."""
    loss = {row.method: row.loss for row in rows}
    return loss[INT8] / loss[FLOAT32]


def shown(measured: FSDPMeasurement) -> Shown:
    """Yield a table for each link, and whether the target is met."""
    yield (
        f"A GPT of {measured.header.parameters:,} parameters on the standard library's source "
        f"text, {WINDOWS} windows of 64 characters for each rank and step, AdamW, {_HOSTS} hosts "
        "with a thread each. Medians of steps; bytes at the busiest host."
    )
    for link in dict.fromkeys(row.link for row in measured.rows):
        rows = [row for row in measured.rows if row.link == link]
        columns: dict[str, Callable[[Row], str]] = {
            "method": lambda row: row.method,
            "step, ms": lambda row: ms_text(median(row.step_s)),
            "MB a step": lambda row: f"{row.counted_bytes / 1e6:.2f}",
            "steps": lambda row: str(row.steps),
            "loss": lambda row: f"{row.loss:.4f}",
        }
        yield table_of(link, rows, columns)
        if {FLOAT32, INT8} <= {row.method for row in rows}:
            faster, loss = speed_up(rows), relative_loss(rows)
            met = faster >= LEAST_SPEED_UP and loss <= MOST_LOSS
            yield (
                f"int8 gradients and weights: {faster:.2f} times faster, the loss {loss - 1:+.2%}; "
                f"the target of {LEAST_SPEED_UP:g} times and {MOST_LOSS - 1:.0%} is "
                f"{'met' if met else 'missed'}."
            )


Links = Annotated[
    list[str] | None,
    typer.Option("--link", help=f"Several times; {', '.join(LINKS)} if left out."),
]
Turns = Annotated[int, typer.Option(min=1, help="That are timed, of each method.")]
Steps = Annotated[int, typer.Option(min=1, help="Of a turn.")]


def fsdp(
    link: Links = None,
    turns: Turns = 5,
    steps: Steps = 10,
    what: What = "*",
    json_file: JsonFile = None,
    update: Update = None,
) -> None:
    """Train a GPT sharded by FSDP2 on four hosts, in float32 and in int8, in turns in one run.

    Takes some eight minutes. Needs network namespaces: Linux, and root or user namespaces.
    """
    settings = Settings(turns=turns, steps=steps, pattern=what, **given(links=link))
    carry_out(FSDPBench(settings), shown, json_file, update)
