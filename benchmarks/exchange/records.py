"""What `python -m benchmarks exchange` leaves behind: one JSON file, checked when it is read.

`targets` works out what meets the targets.
"""

from __future__ import annotations

from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import AwareDatetime, Field, NonNegativeInt, PositiveInt

from benchmarks.exchange.method import Maker, Verb
from compressa.collectives.cost import Link
from harness import records
from harness.records import NotNegative, Positive, Spread


class Network(records.Row):
    """Hosts and their links, as they were found before the rows were measured.

    `line_bytes_per_s` is the goodput of one plain TCP stream between two of the hosts.
    `message_s`, `byte_s` and `reduce_s` are what the cost model takes: fitted to exchanges of all
    ranks with all others at two sizes, and to additions of all ranks at the same time. The two of
    `pair` are those of two ranks while the others are silent; older networks have none.
    `byte_spread` is how far the rounds of that fit disagree about a byte, as a share of it.
    """

    hosts: Annotated[int, Field(ge=2)]
    link: str
    rate_bits_per_s: Positive | None
    line_bytes_per_s: Positive
    message_s: NotNegative
    byte_s: Positive
    reduce_s: Positive
    pair_message_s: NotNegative | None = None
    pair_byte_s: Positive | None = None
    byte_spread: NotNegative | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """Its hosts and links."""
        return self.hosts, self.link

    @property
    def where(self) -> tuple[str, str]:
        """The same in words."""
        return str(self.hosts), self.link

    @property
    def cost(self) -> Link:
        """The link of the cost model."""
        pair = self.pair_message_s, self.pair_byte_s
        return Link(self.message_s, self.byte_s, self.reduce_s, *pair)


class Row(Spread):
    """One method on one size. Times and bytes are those of one operation.

    Of each chain of operations the slowest rank counts. `formula_bytes` pass the busiest port by
    the method's formula, and `line_rate_share` is the time they take at line rate, over the
    median; `counted_bytes` is what all hosts' interfaces have sent, `load` the share of the
    machine's processors that were busy, by whatever. `predicted_s` is what the cost model's formula
    says, `calibrated_s` what `auto` goes by: the formula, times what it was off at sizes that were
    measured before. Older rows have only the first.
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
    calibrated_s: Positive | None = None
    counted_bytes: NonNegativeInt | None
    load: NotNegative
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """Where in the grid it stands."""
        return self.part, self.hosts, self.link, self.method, self.size_bytes

    @property
    def error(self) -> float | None:
        """How far the formula's time is off, as a share of the measured one."""
        return None if self.predicted_s is None else abs(self.predicted_s / self.median_s - 1)

    @property
    def calibrated_error(self) -> float | None:
        """How far the time is off that `auto` goes by."""
        return None if self.calibrated_s is None else abs(self.calibrated_s / self.median_s - 1)


class Omitted(records.Row):
    """What was not measured, and why; a size or a link of None stands for all of them."""

    part: str = "sums"
    hosts: Annotated[int, Field(ge=2)]
    link: str | None
    method: str
    size_bytes: PositiveInt | None
    why: str

    @property
    def identity(self) -> tuple[object, ...]:
        """Where in the grid it stands."""
        return self.part, self.hosts, self.link, self.method, self.size_bytes


class Simulated(records.Row):
    """An algorithm on ranks that share a virtual clock, each with a port of the given cost."""

    method: str
    hosts: Annotated[int, Field(ge=2)]
    size_bytes: PositiveInt
    message_s: NotNegative
    byte_s: Positive
    took_s: Positive
    predicted_s: Positive

    @property
    def identity(self) -> tuple[object, ...]:
        """The algorithm, and the number of ranks."""
        return self.method, self.hosts


class Header(records.Header):
    """Where, when and how."""

    format: Literal["compressa.bench.exchange"] = "compressa.bench.exchange"
    threads_per_rank: Literal[1] = 1
    budget_s: Positive
    longest_s: Positive


class ExchangeMeasurement(records.Measurement):
    """The whole file. A network is as it was found last; each row keeps the figures it had."""

    command: ClassVar[str] = "python -m benchmarks exchange"

    header: Header
    networks: list[Network]
    rows: list[Row]
    omitted: list[Omitted]
    simulated: list[Simulated] = Field(default_factory=list)

    @property
    def from_slow_to_fast(self) -> list[Network]:
        """The networks by the number of hosts, and from slow links to fast ones."""
        return sorted(self.networks, key=lambda n: (n.hosts, n.rate_bits_per_s or inf))

    @property
    def missing(self) -> list[Omitted]:
        """What was omitted and has no row of another time, when it could be measured."""
        measured = {row.identity for row in self.rows}
        return [row for row in self.omitted if row.identity not in measured]
