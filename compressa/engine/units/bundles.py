"""Bundles: units that go together, as one program, where nothing is to overtake others.

Units are small at both ends so that what is urgent may go first. Where training waits for all of
them anyway, each would still cost a task, pieces of work for other threads, and messages. So there
as many neighbours go together as one unit would hold if order were all the same.

They become one unit, with one payload, where that changes no value: each scope is compressed as it
would be alone, and sums go by rank. Else each has its own payload and its own sums as before; what
they compute is one piece of work, and what they send leaves as one message.

Only units of one kind go together, whose exchanges are the same on every rank, but for bytes: so
all ranks do the same at the same time, and join the same messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from compressa.collectives.base import Compute, Exchange, Operation, Program, SideBySide
from compressa.compressor import Compressor
from compressa.engine.device_stream import DeviceStream, resources_for
from compressa.engine.units.phase import Member, Phase
from compressa.engine.units.unit_runtime import UnitRuntime
from compressa.engine.units.units import LARGEST_UNIT_BYTES, usual_full

# To copy more side by side takes longer than the messages that it spares.
_MOST_PART_BYTES = 1 << 20


class Joining(NamedTuple):
    """Which units go together.

    Attributes:
        small: Whether those do that are smaller than units are where order is all the same.
        large: Whether those do that are compressed, even so.
    """

    small: bool = False
    large: bool = False

    def full(self, dense_bytes: int, payload_bytes: int) -> bool:
        """Return whether no more goes together with what has so many bytes."""
        if self.large and payload_bytes < dense_bytes:
            return dense_bytes >= LARGEST_UNIT_BYTES
        return not self.small or usual_full(dense_bytes, payload_bytes)


class Bundle:
    """Some units of a phase, in the order of their numbers.

    Args:
        members: The units, or what stands for them.
        name: For people.
        joins: Whether messages are joined, where their lengths are known.

    Attributes:
        members: As given.
        name: As given.
        numbers: Of all units.
        waits: Whether what one of them computes may wait for a GPU.
    """

    def __init__(self, members: Sequence[Member], name: str, *, joins: bool = True) -> None:
        self.members = tuple(members)
        self.name = name
        self.numbers = [number for member in members for number in member.numbers]
        self.waits = any(member.unit.aggregator.waits for member in members)
        self._joins = joins
        self._rooms: dict[Hashable, torch.Tensor] = {}

    def program(self, programs: Sequence[Program[None]]) -> Program[None]:
        """Return what runs the members' programs, one operation of each at a time."""
        return programs[0] if len(programs) == 1 else self._side_by_side(programs)

    def _side_by_side(self, programs: Sequence[Program[None]]) -> Program[None]:
        answers: list[Any] = [None] * len(programs)
        left, exchange_number = list(programs), 0
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
                answers = yield from self._all(operations, exchange_number)
                exchange_number += 1
        finally:
            for program in programs:
                program.close()

    def _all(self, operations: Sequence[Operation], exchange_number: int) -> Program[list[Any]]:
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
            return (yield from self._as_one(exchanges, exchange_number))
        results = [None] * len(operations)
        each = partial(_into, results)
        stages = max(operation.exchanges for operation in operations)
        yield SideBySide([each(i, operation) for i, operation in enumerate(operations)], stages)
        return results

    def _as_one(self, exchanges: Sequence[Exchange], exchange_number: int) -> Program[list[Any]]:
        """Exchange one message with each peer, in place of several."""
        first = exchanges[0]
        sent = {peer: [each.outgoing[peer] for each in exchanges] for peer in first.outgoing}
        rooms = {peer: [each.incoming[peer] for each in exchanges] for peer in first.incoming}
        sizes = {
            peer: sum(each.capacity_bytes[peer] for each in exchanges)
            for peer in first.capacity_bytes
        }
        incoming = {
            peer: self._room(("in", exchange_number, peer), into) for peer, into in rooms.items()
        }
        grace_s = max(each.grace_s for each in exchanges)
        outgoing = yield Compute(lambda: self._copied(sent, exchange_number), "encode", quick=True)
        yield Exchange(outgoing, incoming, True, sizes, grace_s)
        yield Compute(lambda: _shared_out(incoming, rooms), "decode", quick=True)
        return [dict(each.incoming) for each in exchanges]

    def _copied(
        self, sent: Mapping[int, Sequence[torch.Tensor]], exchange_number: int
    ) -> dict[int, torch.Tensor]:
        """Put what goes to each peer side by side; what several get, once."""
        copies: dict[tuple[int, ...], torch.Tensor] = {}
        result = {}
        for peer, parts in sent.items():
            key = tuple(map(id, parts))
            if key not in copies:
                copies[key] = torch.cat(
                    list(parts), out=self._room(("out", exchange_number, peer), parts)
                )
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
        device_stream: Where units that are joined have their memory.
    """

    def __init__(self, phase: Phase, device_stream: DeviceStream) -> None:
        self._phase = phase
        self._device_stream = device_stream
        self._joined: dict[Joining, tuple[dict[int, Bundle], dict[str, list[int]]]] = {}
        self.begin(Joining())

    def begin(self, joining: Joining) -> None:
        """Begin a step.

        Args:
            joining: Which units go together in it.

        Raises:
            BackendUnavailable: There is not enough memory for units that are joined.
        """
        if joining not in self._joined:
            with self._device_stream.current(), resources_for("payloads"):
                bundles = [_bundle(self._phase, group) for group in grouped(self._phase, joining)]
            self._joined[joining] = self._by_unit(bundles)
        self._of, self._of_name = self._joined[joining]
        self._missing = {bundle: len(bundle.numbers) for bundle in self._of.values()}

    def complete(self, units: Iterable[int]) -> list[Bundle]:
        """Note that units are complete; return the bundles that are now."""
        done = []
        for unit in units:
            bundle = self._of[unit]
            self._missing[bundle] -= 1
            if not self._missing[bundle]:
                done.append(bundle)
        return done

    def awaited(self, missing: Collection[str]) -> tuple[Mapping[str, Sequence[int]], Counter[int]]:
        """Return which bundles parameters have a part in, by name; and what bundles lack.

        Args:
            missing: Names of the gradients that have not come.

        Returns:
            Bundles by the numbers of their first units; how many gradients each lacks.
        """
        of = self._of_name
        return of, Counter(number for name in missing for number in of[name])

    def of(self, unit: int) -> Bundle:
        """Return what a unit is in."""
        return self._of[unit]

    @property
    def running(self) -> list[UnitRuntime]:
        """What is run in this step, joined units once."""
        return [member.unit for bundle in self._missing for member in bundle.members]

    def _by_unit(self, bundles: Sequence[Bundle]) -> tuple[dict[int, Bundle], dict[str, list[int]]]:
        """By unit, what it is in; by parameter name, the first units of what it has a part in."""
        of = {number: bundle for bundle in bundles for number in bundle.numbers}
        heads = {number: bundle.numbers[0] for number, bundle in of.items()}
        of_name = {
            name: list(dict.fromkeys(heads[unit] for unit in units))
            for name, units in self._phase.units_of.items()
        }
        return of, of_name


def grouped(phase: Phase, joining: Joining) -> list[list[int]]:
    """Put units of one kind together, by their numbers, until that is as large as it shall be."""
    result: list[list[int]] = []
    filled: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, unit in enumerate(phase.units):
        plans = list(map(phase.sums.plan, unit.rounds))
        if not all(plan.symmetric for plan in plans):
            result.append([number])
            continue
        stages = len(phase.sums.transfers(number, unit.rounds))
        names = [plan.name for plan in plans]
        algorithms = tuple((r.verb, r.exact, n) for r, n in zip(unit.rounds, names, strict=True))
        kind = unit.label, unit.layout.dtype, stages, algorithms
        filled[kind].append(number)
        members = [phase.units[i] for i in filled[kind]]
        sizes = [
            sum(each.dense_bytes for each in members),
            sum(each.payload_bytes for each in members),
        ]
        if joining.full(*sizes):
            result.append(filled.pop(kind))
    return sorted(result + list(filled.values()))


def _bundle(phase: Phase, numbers: Sequence[int]) -> Bundle:
    alike: defaultdict[Compressor, list[int]] = defaultdict(list)
    for number in numbers:
        alike[phase.units[number].compressor].append(number)
    members = [member for group in alike.values() for member in phase.joined(group)]
    more, payload_bytes = len(numbers) - 1, sum(phase.units[i].payload_bytes for i in numbers)
    name = phase.units[numbers[0]].name + (f" (+{more})" if more else "")
    return Bundle(members, name, joins=payload_bytes <= _MOST_PART_BYTES * len(numbers))


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
