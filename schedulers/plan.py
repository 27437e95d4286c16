"""What a scheduler is told of transfers, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

Name = tuple[int, int]
"""(unit, stage) of a transfer."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message exchange of one unit: a stage of its program.

    Times are seconds from the start of backward, and durations.

    Attributes:
        unit: Number of the unit; units are numbered in the order in which backward readies
            them.
        stage: Number of the exchange within the unit's program.
        wire_bytes: Bytes that one rank sends in it.
        ready_s: When backward has readied the unit; 0 if unknown.
        need_s: When the next forward needs the unit's result, if it has not waited before; 0 if
            unknown. A unit's times are those of its first stage.
        encode_s: What is computed before it can leave.
        decode_s: What is computed once its answer is there, before the stage that waits for it or,
            after the last, before the result is there.
        after: Stage of the unit whose answer it waits for, -1 for none; left out: the one before.
            Of a sum in n segments, every stage waits for the n-th before.
    """

    unit: int
    stage: int
    wire_bytes: int
    ready_s: float = 0.0
    need_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    after: int | None = None

    @property
    def waits_for(self) -> int:
        """Stage of the unit that it waits for; -1 if none."""
        return self.stage - 1 if self.after is None else self.after


@dataclass(frozen=True)
class Plan:
    """A total order over the transfers of a step, the same on every rank, and how to follow it.

    A plan changes when bytes move, never what is computed: what is compressed together and the
    order of sums are settled before.

    Attributes:
        order: (unit, stage), first to last: a transfer's priority among those that are ready. It
            is no order of launches where all ranks must have one; see `launches`.
        first_step: First step that follows this plan.
        chunk_bytes: Most bytes of a payload that go out in one piece; None: as the transport does.
        credit_bytes: Most bytes handed over for one peer that more urgent ones cannot overtake;
            None: as the transport does.
        groups: Transfers that leave in one message, once all of a group are ready, with the
            priority of the most urgent; each has two at least, and none is in two.
        policy: What made it, for people.
        reason: Why so, for people.

    Raises:
        ValueError: A transfer is named twice, or in two groups, or only in a group.
    """

    order: tuple[Name, ...]
    first_step: int = 0
    chunk_bytes: int | None = None
    credit_bytes: int | None = None
    groups: tuple[tuple[Name, ...], ...] = ()
    policy: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        named = set(self.order)
        if len(named) != len(self.order):
            raise ValueError("a plan names the same (unit, stage) twice")
        grouped = [name for group in self.groups for name in group]
        if len(set(grouped)) != len(grouped) or not named.issuperset(grouped):
            raise ValueError("a group of a plan names what is in another, or not in the plan")

    @cached_property
    def priorities(self) -> Mapping[Name, int]:
        """Of each transfer; the lowest goes first."""
        return {name: number for number, name in enumerate(self.order)}

    @cached_property
    def mates(self) -> Mapping[Name, tuple[Name, ...]]:
        """The group of each transfer that is in one."""
        return {name: group for group in self.groups for name in group}
