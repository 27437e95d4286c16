"""Bundles: units that go together, as one program, where nothing is to overtake others.

Units are small at both ends so that what is urgent may go first. Where training waits for all of
them anyway, each would still cost a task, pieces of work for other threads, and messages. So there
as many neighbours go together as one unit would hold if order were all the same: what they compute
is one piece of work, and what they send leaves as one message. Each unit has its own payload and
its own sums as before, so no bit depends on it.

Only units of one kind go together, whose exchanges are the same on every rank, but for bytes: so
all ranks do the same at the same time, and join the same messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from compressa.collectives.base import Compute, Exchange, Operation, Program, Together
from compressa.engine.units.phase import Phase
from compressa.engine.units.planning import Planning
from compressa.engine.units.units import usual_full

# To copy more side by side takes longer than the messages that it spares.
_MOST_PART_BYTES = 1 << 20


class Bundle:
    """Some units of a phase, in the order of their numbers.

    Args:
        units: Their numbers.
        name: For people.
        joins: Whether messages are joined, where their lengths are known.
    """

    def __init__(self, units: Sequence[int], name: str, *, joins: bool = True) -> None:
        self.units = tuple(units)
        self.name = name
        self._joins = joins
        self._rooms: dict[Hashable, torch.Tensor] = {}

    def program(self, programs: Sequence[Program[None]]) -> Program[None]:
        """Return what runs the units' programs, one operation of each at a time."""
        return programs[0] if len(programs) == 1 else self._side_by_side(programs)

    def _side_by_side(self, programs: Sequence[Program[None]]) -> Program[None]:
        answers: list[Any] = [None] * len(programs)
        left, turn = list(programs), 0
        try:
            while left:
                operations: list[Operation] = []
                under_way = []
                for program, answer in zip(left, answers, strict=True):
                    try:
                        operations.append(program.send(answer))
                    except StopIteration:
                        continue
                    under_way.append(program)
                left = under_way
                answers = yield from self._all(operations, turn)
                turn += 1
        finally:
            for program in programs:
                program.close()

    def _all(self, operations: Sequence[Operation], turn: int) -> Program[list[Any]]:
        """Carry out an operation of each; return their results."""
        computes = [each for each in operations if isinstance(each, Compute)]
        exchanges = [each for each in operations if isinstance(each, Exchange)]
        if not operations:
            return []
        if len(computes) == len(operations):
            works, quick = [each.work for each in computes], all(each.quick for each in computes)
            results: list[Any] = yield Compute(
                lambda: [work() for work in works], computes[0].stage, quick
            )
            return results
        if self._joins and len(exchanges) == len(operations) and _alike(exchanges):
            return (yield from self._as_one(exchanges, turn))
        results = [None] * len(operations)
        each = partial(_into, results)
        stages = max(operation.exchanges for operation in operations)
        yield Together([each(i, operation) for i, operation in enumerate(operations)], stages)
        return results

    def _as_one(self, exchanges: Sequence[Exchange], turn: int) -> Program[list[Any]]:
        """Exchange one message with each peer, in place of several."""
        first = exchanges[0]
        sent = {peer: [each.outgoing[peer] for each in exchanges] for peer in first.outgoing}
        rooms = {peer: [each.incoming[peer] for each in exchanges] for peer in first.incoming}
        sizes = {
            peer: sum(each.capacity_bytes[peer] for each in exchanges)
            for peer in first.capacity_bytes
        }
        incoming = {peer: self._room(("in", turn, peer), into) for peer, into in rooms.items()}
        grace_s = max(each.grace_s for each in exchanges)
        outgoing = yield Compute(lambda: self._copied(sent, turn), "encode", quick=True)
        yield Exchange(outgoing, incoming, True, sizes, grace_s)
        yield Compute(lambda: _shared_out(incoming, rooms), "decode", quick=True)
        return [dict(each.incoming) for each in exchanges]

    def _copied(
        self, sent: Mapping[int, Sequence[torch.Tensor]], turn: int
    ) -> dict[int, torch.Tensor]:
        """Put what goes to each peer side by side; what several get, once."""
        copies: dict[tuple[int, ...], torch.Tensor] = {}
        result = {}
        for peer, parts in sent.items():
            key = tuple(map(id, parts))
            if key not in copies:
                copies[key] = torch.cat(list(parts), out=self._room(("out", turn, peer), parts))
            result[peer] = copies[key]
        return result

    def _room(self, key: Hashable, like: Sequence[torch.Tensor]) -> torch.Tensor:
        """Memory for parts side by side, the same in every step."""
        size = sum(part.numel() for part in like)
        room = self._rooms.get(key)
        if room is None or room.numel() != size:
            room = self._rooms[key] = like[0].new_empty(size)
        return room


class Bundles:
    """Which units of a step go together, and which of these are complete; for one thread.

    Args:
        phase: Whose units.

    Attributes:
        phase: As given.
    """

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        made = [_bundle(phase, units) for units in _neighbours(phase)]
        self._of = {unit: bundle for bundle in made for unit in bundle.units}
        self._missing: dict[Bundle, int] = {}

    def begin(self) -> None:
        """Begin a step."""
        self._missing = {bundle: len(bundle.units) for bundle in self._of.values()}

    def complete(self, units: Iterable[int]) -> list[tuple[tuple[int, ...], Bundle]]:
        """Note that units are complete; return the bundles that are now, with their units."""
        done = []
        for unit in units:
            bundle = self._of[unit]
            self._missing[bundle] -= 1
            if not self._missing[bundle]:
                done.append((bundle.units, bundle))
        return done

    def of(self, unit: int) -> Bundle:
        """Return what a unit is in."""
        return self._of[unit]


def following(now: Bundles | None, phase: Phase, planning: Planning) -> Bundles | None:
    """Return the bundles of a phase, those that there are if they are its; None to have none."""
    if not planning.together:
        return None
    return now if now is not None and now.phase is phase else Bundles(phase)


def _neighbours(phase: Phase) -> list[list[int]]:
    """Put units of one kind together, until they are as large as one unit usually is."""
    result: list[list[int]] = []
    filled: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, unit in enumerate(phase.units):
        if not all(map(phase.sums.symmetric, unit.rounds)):
            result.append([number])
            continue
        stages = len(phase.sums.transfers(number, unit.rounds))
        algorithms = tuple((r.verb, r.exact, phase.sums.algorithm(r)) for r in unit.rounds)
        kind = unit.label, unit.layout.dtype, stages, algorithms
        filled[kind].append(number)
        members = [phase.units[i] for i in filled[kind]]
        dense_bytes = sum(each.dense_bytes for each in members)
        if usual_full(dense_bytes, sum(each.payload_bytes for each in members)):
            result.append(filled.pop(kind))
    return sorted(result + list(filled.values()))


def _bundle(phase: Phase, numbers: Sequence[int]) -> Bundle:
    units = [phase.units[i] for i in numbers]
    more, payload_bytes = len(units) - 1, sum(unit.payload_bytes for unit in units)
    name = f"{units[0].name} (+{more})" if more else units[0].name
    return Bundle(numbers, name, joins=payload_bytes <= _MOST_PART_BYTES * len(units))


def _alike(exchanges: Sequence[Exchange]) -> bool:
    """Whether messages can be joined: they are as long as is known, and for the same peers."""
    first = exchanges[0]
    peers = [first.outgoing.keys(), first.incoming.keys(), first.capacity_bytes.keys()]
    return all(
        each.exact
        and [each.outgoing.keys(), each.incoming.keys(), each.capacity_bytes.keys()] == peers
        for each in exchanges
    )


def _shared_out(
    incoming: Mapping[int, torch.Tensor], rooms: Mapping[int, Sequence[torch.Tensor]]
) -> None:
    """Copy what has come from each peer to where each part belongs."""
    for peer, into in rooms.items():
        parts = incoming[peer].split([room.numel() for room in into])
        for part, room in zip(parts, into, strict=True):
            room.copy_(part)


def _into(results: list[Any], index: int, operation: Operation) -> Program[None]:
    results[index] = yield operation
