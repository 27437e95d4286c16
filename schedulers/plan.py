"""What a scheduler is told, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Transfer:
    """One message exchange of one unit: a stage of its program.

    Attributes:
        unit: Number of the unit; units are numbered in the order in which backward readies
            them.
        stage: Number of the exchange within the unit's program; each waits for the one before.
        wire_bytes: Bytes that one rank sends in it.
        ready_s: Expected time from the start of backward to readiness; 0 if unknown.
        need_s: Expected time at which the next forward needs the result; 0 if unknown.
    """

    unit: int
    stage: int
    wire_bytes: int
    ready_s: float = 0.0
    need_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A total order over the transfers of a step, the same on every rank.

    On tagged transports a transfer's place is its priority among those that are ready; on
    ordered ones it is the order of launches.

    Attributes:
        order: (unit, stage), first to last.
        first_step: First step that follows this plan.
    """

    order: tuple[tuple[int, int], ...]
    first_step: int = 0
    places: dict[tuple[int, int], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {key: place for place, key in enumerate(self.order)}
        if len(places) != len(self.order):
            raise ValueError("a plan names the same (unit, stage) twice")
        object.__setattr__(self, "places", places)


STAGE_LAG_UNITS = 2


def staggered(units: Iterable[int], transfers: Iterable[Transfer]) -> tuple[tuple[int, int], ...]:
    """Order transfers by their unit's place, later stages a few places later.

    A stage cannot start before the answer to the previous one is back. Placing it
    `STAGE_LAG_UNITS` units later fills the wire with other units meanwhile.
    """
    place = {unit: index for index, unit in enumerate(units)}

    def key(transfer: Transfer) -> tuple[int, int]:
        return place[transfer.unit] + STAGE_LAG_UNITS * transfer.stage, -transfer.stage

    return tuple((t.unit, t.stage) for t in sorted(transfers, key=key))
