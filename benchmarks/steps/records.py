"""What `python -m benchmarks steps` leaves behind: one JSON file, checked when it is read.

`ratios` and `targets` work out what meets the targets.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, PositiveInt, model_validator

from benchmarks.steps.plan import ALONE, Client
from harness import records
from harness.records import NotNegative, Positive, Row, Spread

Rounds = Annotated[tuple[Positive, ...], Field(min_length=1)]
"""Seconds, by round; those of different rows with the same index were measured side by side."""


class Case(Row):
    """What the steps of a model on some hosts have in common.

    `line_bytes_per_s` is the goodput of one plain TCP stream between two of the hosts;
    `bus_bytes_per_s` what one rank's thread moves over the memory bus while all ranks do so, by
    the yardstick of `python -m benchmarks kernels`.
    """

    hosts: Annotated[int, Field(ge=2)]
    link: str
    model: str
    parameters: PositiveInt
    samples: PositiveInt = Field(description="of a rank's batch")
    rounds: PositiveInt
    line_bytes_per_s: Positive
    bus_bytes_per_s: Positive
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is a case of."""
        return self.hosts, self.link, self.model


class Cpu(records.Strict):
    """Seconds of processor time of a rank's threads in a step, by what they are; see `training`."""

    main_s: NotNegative
    communication_s: NotNegative
    workers_s: NotNegative
    other_s: NotNegative

    @property
    def beside_main_s(self) -> float:
        """All that the training thread does not do itself, on whatever thread."""
        return self.communication_s + self.workers_s + self.other_s


class Step(Spread):
    """A step of one method; of seconds, bytes and messages those of the rank that has most.

    `sent_bytes` and `messages` are what our own statistics say, and `counted_bytes` what a host's
    interface has carried in its busier direction, all headers included. `kernel_bytes` is what our
    kernels must move, where that is stated (`memory`). `load` is the share of the machine's
    processors that were busy.
    """

    hosts: Annotated[int, Field(ge=2)]
    link: str
    model: str
    method: str
    client: Client
    compressor: str
    rounds_s: Rounds
    sent_bytes: NotNegative | None
    counted_bytes: NotNegative
    messages: NotNegative | None
    kernel_bytes: Positive | None
    cpu: Cpu
    load: NotNegative
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """Its case: the steps of a case are measured together."""
        return self.hosts, self.link, self.model

    @property
    def link_bytes(self) -> float:
        """Bytes on the busiest link: by our statistics, or else by the interfaces."""
        return self.counted_bytes if self.sent_bytes is None else self.sent_bytes


class Message(Row):
    """What an operation on a few bytes takes, by round, and the same beside a busy thread.

    That thread runs Python and never blocks; `messages` says on which ranks.
    """

    hosts: Annotated[int, Field(ge=2)]
    link: str
    what: str
    size_bytes: PositiveInt
    idle_s: Rounds
    beside_s: Rounds
    timestamp: AwareDatetime

    @property
    def identity(self) -> tuple[object, ...]:
        """What it is, where."""
        return self.hosts, self.link, self.what


class Header(records.Header):
    """Where, when and how; all ranks of a case share `rank_cores` cores."""

    alike: ClassVar[tuple[str, ...]] = ("cpu", "cores", "system", "rank_cores")

    format: Literal["compressa.bench.steps"] = "compressa.bench.steps"
    threads_per_rank: Literal[1] = 1
    rank_cores: PositiveInt
    budget_s: NotNegative


class StepsMeasurement(records.Measurement):
    """The whole file."""

    command: ClassVar[str] = "python -m benchmarks steps"

    header: Header
    cases: list[Case] = Field(default_factory=list)
    steps: list[Step] = Field(default_factory=list)
    messages: list[Message] = Field(default_factory=list)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        known = {case.identity: case.rounds for case in self.cases}
        for step in self.steps:
            if known.get(step.identity) != len(step.rounds_s):
                raise ValueError(f"{step.method} has no case of as many rounds")
        for identity in known:
            alone = (step for step in self.steps if step.method == ALONE.name)
            if not any(step.identity == identity for step in alone):
                raise ValueError(f"{identity}: {ALONE.name} was not measured")
        return self

    def of(self, case: Case) -> list[Step]:
        """Return the steps of a case."""
        return [step for step in self.steps if step.identity == case.identity]
