"""What `python -m benchmarks schedule` leaves behind: one JSON file, checked when it is read.

`tables` works out what meets the targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, NonNegativeInt, PositiveInt, model_validator

from benchmarks import paired
from harness import records
from harness.records import NotNegative, Positive, Row, Spread


class Case(Row):
    """What a compressor's steps have in common, in seconds; the slowest rank counts.

    Computing is measured without communication, and communication without computing, in the same
    run as the steps. `backward_s` contains the optimizer's update.
    """

    compressor: str
    ratio: Positive = Field(description="of C to F + B, as asked for")
    link: str
    batch: PositiveInt
    forward_s: Positive
    backward_s: Positive
    communication_s: Positive
    rounds: PositiveInt
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is a case of."""
        return self.compressor, self.ratio

    @property
    def compute_s(self) -> float:
        """F + B."""
        return self.forward_s + self.backward_s

    @property
    def ideal_s(self) -> float:
        """The larger of computing and communication."""
        return max(self.compute_s, self.communication_s)

    @property
    def reached_ratio(self) -> float:
        """C / (F + B), as measured."""
        return self.communication_s / self.compute_s


class Step(Spread):
    """A step of one method; `load` is the share of the machine's processors that were busy."""

    compressor: str
    ratio: Positive
    method: str
    simulated_s: Positive | None = None
    load: NotNegative
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """Its case: the steps of a case are measured together."""
        return self.compressor, self.ratio

    @property
    def error(self) -> float | None:
        """How far the simulated step is off, as a share of the measured one."""
        return None if self.simulated_s is None else self.simulated_s / self.median_s - 1


class Pipelined(Row):
    """Units through the comm hook alone: what is there at once, and nothing is computed beside it.

    `encode_s`, `wire_s` and `decode_s` are those of a step, unit after unit.
    """

    compressor: str
    link: str
    units: PositiveInt
    encode_s: Positive
    wire_s: Positive
    decode_s: Positive
    apart_s: Positive = Field(description="unit after unit")
    pipelined_s: Positive
    load: NotNegative
    timestamp: AwareDatetime

    @property
    def bound(self) -> float:
        """How many times shorter than all stages together a step can be."""
        return self.stages_s / max(self.encode_s, self.wire_s, self.decode_s)

    @property
    def stages_s(self) -> float:
        """All stages together."""
        return self.encode_s + self.wire_s + self.decode_s

    @property
    def gain(self) -> float:
        """How many times shorter it is."""
        return self.stages_s / self.pipelined_s


class Overhead(Row):
    """Microseconds of processor time for each chunk."""

    what: str
    chunks: PositiveInt
    chunk_us: Positive
    timestamp: AwareDatetime


class Traced(paired.Overhead):
    """What it costs to record a trace."""

    timestamp: AwareDatetime


Pair = tuple[tuple[Positive, ...], tuple[Positive, ...]]


class Jobs(Row):
    """Two jobs that begin together on one link; steps are multiples of a job's mean step alone.

    `unstaggered` and `staggered` are the jobs' mean steps. `medians` and `worsts` are of these same
    steps, in this order. Computing is a timed wait, in each step up to `jitter` longer or shorter.
    At the link's port all packets stand in one queue ("fifo"), or connections have even shares of
    its rate ("fair"), which TCP leaves as they are.
    """

    link: str
    port: Literal["fifo", "fair"]
    size_bytes: PositiveInt
    alone_s: Positive
    communication: NotNegative = Field(description="its share of the time alone")
    jitter: NotNegative
    unstaggered: tuple[Positive, ...]
    staggered: tuple[Positive, ...]
    medians: Pair
    worsts: Pair
    burstiness: tuple[NotNegative | None, ...]
    timestamp: AwareDatetime


class Pushes(Row):
    """Four workers that push to one parameter server, at once and in slots, in this order.

    `retransmitted` counts TCP segments, `peak_bytes` what waited at the server's port at the most.
    """

    link: str
    size_bytes: PositiveInt
    round_s: tuple[Positive, Positive]
    retransmitted: tuple[NonNegativeInt, NonNegativeInt]
    peak_bytes: tuple[NonNegativeInt, NonNegativeInt]
    burstiness: tuple[NotNegative, NotNegative]
    timestamp: AwareDatetime

    @property
    def fewer_retransmitted(self) -> float:
        """How many times fewer segments are sent again in slots; none counts as one."""
        return self.retransmitted[0] / max(self.retransmitted[1], 1)

    @property
    def smaller_peak(self) -> float:
        """How many times less waits at the most."""
        return self.peak_bytes[0] / max(self.peak_bytes[1], 1)

    @property
    def slowdown(self) -> float:
        """What a round takes in slots, as a multiple."""
        return self.round_s[1] / self.round_s[0]


class Header(records.Header):
    """Where, when and how."""

    alike: ClassVar[Sequence[str]] = (*records.Header.alike, "parameters", "layers")

    format: Literal["compressa.bench.schedule"] = "compressa.bench.schedule"
    hosts: Literal[2] = 2
    threads_per_rank: Literal[1] = 1
    parameters: PositiveInt
    layers: PositiveInt
    budget_s: NotNegative


class ScheduleMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks schedule"

    header: Header
    cases: list[Case] = Field(default_factory=list)
    steps: list[Step] = Field(default_factory=list)
    pipelined: list[Pipelined] = Field(default_factory=list)
    overhead: list[Overhead] = Field(default_factory=list)
    traced: list[Traced] = Field(default_factory=list)
    jobs: list[Jobs] = Field(default_factory=list)
    pushes: list[Pushes] = Field(default_factory=list)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        known = {case.identity for case in self.cases}
        for step in self.steps:
            if step.identity not in known:
                raise ValueError(f"a step of {step.compressor} at {step.ratio:g} has no case")
        return self

    def of(self, case: Case) -> list[Step]:
        """Return the steps of a case."""
        return [step for step in self.steps if step.identity == case.identity]
