"""What `python -m benchmarks exchange` leaves behind: one JSON file, checked when it is read.

Targets are not written down: `targets` works out what meets them.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AwareDatetime,
    Field,
    NonNegativeInt,
    PositiveInt,
)

from benchmarks import records
from benchmarks.exchange.method import Maker, Verb
from benchmarks.records import Positive, Share, Spread, Strict, read_as
from compressa.collectives.cost import Link
from compressa.errors import ConfigError


class Network(Strict):
    """Hosts and their links, as they were found before the rows were measured.

    `line_bytes_per_s` is the goodput of one plain TCP stream between two of the hosts.
    `message_s`, `byte_s` and `reduce_s` are what the cost model takes: fitted to exchanges of all
    ranks with all others at two sizes, and to additions of all ranks at the same time.
    `byte_spread` is how far the rounds of that fit disagree about a byte, as a share of it.
    """

    hosts: Annotated[int, Field(ge=2)]
    link: str
    rate_bits_per_s: Positive | None
    line_bytes_per_s: Positive
    message_s: Share
    byte_s: Positive
    reduce_s: Positive
    byte_spread: Share | None = None

    @property
    def cost(self) -> Link:
        """The link of the cost model."""
        return Link(self.message_s, self.byte_s, self.reduce_s)


class Row(Spread):
    """One method on one size. Times and bytes are those of one operation.

    Of each chain of operations the slowest rank counts. `formula_bytes` pass the busiest port by
    the method's formula, and `line_rate_share` is the time they take at line rate, over the
    median; `counted_bytes` is what all hosts' interfaces have sent, `load` the share of the
    machine's processors that were busy, by whatever.
    """

    part: str = "sums"
    hosts: Annotated[int, Field(ge=2)]
    link: str
    method: str
    by: Maker
    verb: Verb
    size_bytes: PositiveInt
    operations: PositiveInt = Field(description="in all, warming up included")
    formula_bytes: Positive
    line_rate_share: Positive
    predicted_s: Positive | None
    counted_bytes: NonNegativeInt | None
    load: Share
    timestamp: AwareDatetime

    @property
    def error(self) -> float | None:
        """How far the predicted time is off, as a share of the measured one."""
        return None if self.predicted_s is None else abs(self.predicted_s / self.median_s - 1)


class Omitted(Strict):
    """What was not measured, and why; a size or a link of None stands for all of them."""

    part: str = "sums"
    hosts: Annotated[int, Field(ge=2)]
    link: str | None
    method: str
    size_bytes: PositiveInt | None
    why: str


class Simulated(Strict):
    """An algorithm on ranks that share a virtual clock, each with a port of the given cost."""

    method: str
    hosts: Annotated[int, Field(ge=2)]
    size_bytes: PositiveInt
    message_s: Share
    byte_s: Positive
    took_s: Positive
    predicted_s: Positive


class Header(records.Header):
    """Where, when and how."""

    format: Literal["compressa.bench.exchange"] = "compressa.bench.exchange"
    threads_per_rank: Literal[1] = 1
    budget_s: Positive
    longest_s: Positive


class ExchangeMeasurement(Strict):
    """The whole file."""

    header: Header
    networks: list[Network]
    rows: list[Row]
    omitted: list[Omitted]
    simulated: list[Simulated] = Field(default_factory=list)

    def updated(self, newer: ExchangeMeasurement) -> ExchangeMeasurement:
        """Return this measurement with what a newer one has measured again, or in addition.

        A network is as it was found last; each row keeps the figures that it had, and stays where
        it can not be measured any more.

        Raises:
            ConfigError: They are of different machines.
        """
        old, new = self.header, newer.header
        if (old.cpu, old.cores, old.system) != (new.cpu, new.cores, new.system):
            raise ConfigError(
                f"rows of {old.cpu}, {old.cores} cores, {old.system} can not be brought up to date "
                f"with those of {new.cpu}, {new.cores} cores, {new.system}; write another file"
            )
        again = {_grid(row) for row in newer.rows}
        rows = [row for row in self.rows if _grid(row) not in again] + newer.rows
        reasons = {_grid(row): row for row in (*self.omitted, *newer.omitted)}
        measured = {_grid(row) for row in rows}
        networks = {(n.hosts, n.link): n for n in (*self.networks, *newer.networks)}
        simulated = {(s.method, s.hosts): s for s in (*self.simulated, *newer.simulated)}
        return ExchangeMeasurement(
            header=new.model_copy(update={"versions": old.versions | new.versions}),
            networks=sorted(networks.values(), key=lambda n: (n.hosts, n.rate_bits_per_s or inf)),
            rows=rows,
            omitted=[row for place, row in reasons.items() if place not in measured],
            simulated=list(simulated.values()),
        )


def _grid(row: Row | Omitted) -> tuple[object, ...]:
    """Where in the grid something stands."""
    return row.part, row.hosts, row.link, row.method, row.size_bytes


def read(path: Path) -> ExchangeMeasurement:
    """Read and check a file.

    Raises:
        ConfigError: It cannot be read, or is no measurement; the message names the place.
    """
    return read_as(ExchangeMeasurement, path, "python -m benchmarks exchange")
