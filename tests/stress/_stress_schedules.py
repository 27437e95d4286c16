"""Schedules of faults: which happen to which ranks, in which steps, all drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from _transports import ROWS

TRANSPORTS = tuple(name for name, row in ROWS.items() if not row.device)
COMPRESSORS = ("none", "int8", "topk", "powersgd")
STEPS = 8

LASTING = ("kill", "stop", "away", "link")
"""The rank is lost: killed, stopped for longer than the silence, elsewhere for longer than the
deadline, or cut off for longer than the silence."""
DATA = ("flip", "header", "size")
"""What it sends is not what it should be; nobody is lost."""
LONE = ("save", "load", "switch", "broadcast")
"""It makes a collective call alone."""
PASSING = ("late", "pause", "outage", "child", "part")
"""All go on: it comes late, is stopped or cut off for a moment, forks a child that lives on, or a
part of the ranks registers another model, trains it and closes."""
KINDS = (*LASTING, *DATA, *LONE, *PASSING)
VIOLATIONS = ("differ", "lose", "keep")
"""Never drawn: its parameters differ, what it owes is dropped, or something stays open. That must
be found out."""

_MOMENTS = ("between", "encode", "exchange")
_ONLY_BETWEEN = (*LONE, "child", "part", "link", "outage")
_ON_NETWORKS = ("link", "outage")
# At the second forward, and at the second one after a reform, torch itself broadcasts its buckets
# over the model's group: whoever is missing there holds up the others in torch. So nothing happens
# before the second step is over, nor ever ahead of forward.
_FIRST, _LAST = 2, STEPS - 4


@dataclass(frozen=True)
class Fault:
    """What happens to one of several ranks, once.

    Attributes:
        kind: One of `KINDS`.
        rank: Whom it happens to.
        step: In which step.
        moment: "registration", "between" (forward and backward), "encode", "exchange", "reform"
            (the first that the rank is asked for) or "close".
        detail: Which variant.
    """

    kind: str
    rank: int
    step: int
    moment: str
    detail: int

    @property
    def ends_the_step(self) -> bool:
        """Whether all other ranks must raise an error."""
        return self.kind in (*LASTING, *DATA)


@dataclass(frozen=True)
class Schedule:
    """Faults of one run.

    Attributes:
        transport: Over which the ranks talk.
        compressor: What they compress with.
        size: Number of ranks.
        network: Whether each is on a host of its own, whose link can go down.
        faults: In no order.
    """

    transport: str
    compressor: str
    size: int
    network: bool
    faults: tuple[Fault, ...]

    @property
    def recovers(self) -> bool:
        """Whether survivors can go on: MPI can not, nor torch without the store of rank 0."""
        lost = {fault.rank for fault in self.faults if fault.kind in LASTING}
        return self.transport != "mpi" and 0 not in lost

    @property
    def starts(self) -> bool:
        """Whether what happens does so when ranks register."""
        return any(fault.moment == "registration" for fault in self.faults)

    def __str__(self) -> str:
        where = " on hosts of their own" if self.network else ""
        events = "; ".join(
            f"{f.kind} on rank {f.rank} in step {f.step} ({f.moment}, {f.detail})"
            for f in sorted(self.faults, key=lambda f: (f.step, f.rank))
        )
        return f"{self.size} ranks{where}, {self.transport}, {self.compressor}: {events}"


def draw(
    seed: int,
    number: int,
    kinds: Sequence[str] = KINDS,
    transports: Sequence[str] = TRANSPORTS,
) -> Schedule:
    """Return a schedule, the same whenever it is asked for.

    Args:
        seed: Of all schedules.
        number: Of this one.
        kinds: Of faults that may be in it.
        transports: That may be used.
    """
    dice = random.Random(f"{seed}/{number}")
    transport = dice.choices(transports, [1 if t == "mpi" else 4 for t in transports])[0]
    network = transport != "mpi" and "link" in kinds and dice.random() < 0.2
    size, compressor = dice.choice((3, 4)), dice.choice(COMPRESSORS)
    usable = [k for k in kinds if network or k not in _ON_NETWORKS]
    if compressor in ("none", "powersgd"):  # whose payloads bear no length
        usable = [k for k in usable if k != "size"]
    draws = {0: _at_registration, 1: _at_close}.get(dice.randrange(10), _in_training)
    return Schedule(transport, compressor, size, network, draws(dice, size, usable))


def _at_registration(dice: random.Random, size: int, kinds: Sequence[str]) -> tuple[Fault, ...]:
    possible = [k for k in (*LASTING, "header", "late") if k in kinds and k != "stop"]
    ranks = dice.sample(range(size), dice.choice((1, 1, 2)) if possible else 0)
    return tuple(
        Fault(dice.choice(possible), rank, -1, "registration", dice.randrange(4)) for rank in ranks
    )


def _at_close(dice: random.Random, size: int, kinds: Sequence[str]) -> tuple[Fault, ...]:
    possible = [k for k in LASTING if k in kinds]
    ranks = dice.sample(range(size), dice.choice((1, 1, 2)) if possible else 0)
    return tuple(Fault(dice.choice(possible), rank, STEPS, "close", 0) for rank in ranks)


def _in_training(dice: random.Random, size: int, kinds: Sequence[str]) -> tuple[Fault, ...]:
    """Several within two steps, at most one of a rank in a step; two ranks at least stay."""
    first = dice.randint(_FIRST, _LAST - 1)
    failures = [(rank, first + later) for rank in range(size) for later in (0, 1)]
    faults: list[Fault] = []
    for rank, step in dice.sample(failures, dice.randint(2, 5)):
        possible = [kind for kind in kinds if _fits(kind, rank, step, size, faults)]
        if possible:
            kind = dice.choice(possible)
            at = first if kind == "part" else step  # later, not all may come to it
            faults.append(Fault(kind, rank, at, _moment(dice, kind), dice.randrange(4)))
    return tuple(faults)


def _fits(kind: str, rank: int, step: int, size: int, faults: Sequence[Fault]) -> bool:
    """Whether one more leaves two ranks, and who calls something alone does so alone."""
    lost = {fault.rank for fault in faults if fault.kind in LASTING}
    if kind in LASTING:
        return len(lost | {rank}) <= size - 2
    return kind not in LONE or all((f.kind, f.step) != (kind, step) for f in faults)


def _moment(dice: random.Random, kind: str) -> str:
    """No rank is away in an exchange: the thread that runs them belongs to the library."""
    if kind in _ONLY_BETWEEN:
        return "between"
    if kind in DATA:
        return "exchange"
    if kind == "away":
        return dice.choice(("between", "encode"))
    return dice.choice((*_MOMENTS, "reform") if kind == "kill" else _MOMENTS)
