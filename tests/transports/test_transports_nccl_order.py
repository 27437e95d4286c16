"""NcclTransport among ranks: whatever comes first where, all launch in one order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_nccl import Fabric
from emulated_streams import DEVICE, UNFINISHED, Event, Stream
from emulated_torch import emulated_torch, on_cpu, on_gpu
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.collectives.base import BackendAllReduce, Exchange, Operation
from compressa.errors import PayloadError, TransportError
from compressa.transports import nccl, nccl_lengths
from compressa.transports.base import Key
from compressa.transports.in_order import InOrder, Launch

PADDED_BYTES = 40
LENGTH_BYTES = 8
CAPACITIES = (0, 7, PADDED_BYTES, PADDED_BYTES + 1, 300)
MOST_TURNS = 20_000

Message = tuple[int, torch.Tensor]  # room, and what is sent


class Later:
    """In place of a watcher's thread: somebody looks now and then, and calls back."""

    def __init__(self, post: Any, device: torch.device) -> None:
        self.due: deque[tuple[Event, Callable[[], None]]] = deque()

    def when(self, event: Event, callback: Callable[[], None]) -> None:
        self.due.append((event, callback))

    def look(self) -> None:
        if self.due and self.due[0][0].query():
            self.due.popleft()[1]()

    def close(self, timeout_s: float) -> None:
        pass


class Rank:
    """One of those that meet, on streams of its own; it asks for one operation after the other."""

    def __init__(self, group: Any) -> None:
        self.group, self.stream = group, Stream(eager=False)
        self.asked: list[Operation] = []
        self.results: dict[int, Any] = {}
        with torch.cuda.stream(self.stream):
            self.transport = nccl.NcclTransport(
                group, 1, self.stream, 60.0, lambda error: None, lambda seconds: None
            )
        self.transport.attach(mock.Mock())
        self.watcher: Any = self.transport._watcher

    def ask(self, operation: Operation) -> None:
        number = len(self.asked)
        self.asked.append(operation)

        def done(result: Any) -> None:
            assert number not in self.results, "reported twice"
            self.results[number] = result

        if isinstance(operation, BackendAllReduce):
            self.transport.all_reduce(operation, done)
        else:
            self.transport.exchange(Key(0, number, 0), operation, 0, done)

    def poll(self) -> None:
        self.group.stream.run_until(self.group.stream._given)


class Plan:
    """What all ranks exchange, and what is due of it; drawn at random."""

    def __init__(self, draw: random.Random) -> None:
        self.size = draw.randint(2, 4)
        self.ranks = range(self.size)
        count = draw.randint(1, 6)
        self.kinds = draw.choices(("exact", "unknown", "unknown", "gather", "sum"), k=count)
        self.messages = [self._messages(draw, kind) for kind in self.kinds]

    def _messages(self, draw: random.Random, kind: str) -> dict[tuple[int, int], Message]:
        pairs = [(i, j) for i in self.ranks for j in self.ranks if i != j]
        if kind in ("gather", "sum"):
            size = draw.randrange(4, 80, 4)
            own = [_bytes(draw, size) for _ in self.ranks]
            return {pair: (size, own[pair[0]]) for pair in pairs}
        messages = {}
        for pair in pairs:
            if draw.random() < 0.8:
                most = draw.choice(CAPACITIES)
                length = most if kind == "exact" else draw.choice((0, most, draw.randint(0, most)))
                messages[pair] = most, _bytes(draw, length)
        return messages

    def operation(self, number: int, rank: int) -> Operation:
        kind, messages = self.kinds[number], self.messages[number]
        out = {j: message for (i, j), message in messages.items() if i == rank}
        into = {i: message for (i, j), message in messages.items() if j == rank}
        if kind == "sum":
            return BackendAllReduce(on_gpu(next(iter(out.values()))[1].to(torch.int32)))
        outgoing = {peer: on_gpu(data) for peer, (_, data) in out.items()}
        most = {peer: room for peer, (room, _) in out.items()}
        if kind != "gather":
            incoming = {i: on_gpu(torch.zeros(room).byte()) for i, (room, _) in into.items()}
            return Exchange(outgoing, incoming, kind == "exact", most)
        own = next(iter(out.values()))[1]
        size = own.numel()
        parts = [own if i == rank else torch.zeros(size).byte() for i in self.ranks]
        block = on_gpu(torch.cat(parts))
        each = block.chunk(self.size)
        outgoing = dict.fromkeys(out, each[rank])
        return Exchange(outgoing, {i: each[i] for i in into}, True, most, gathered=block)

    def __len__(self) -> int:
        return len(self.kinds)

    def due(self, number: int, rank: int) -> Any:
        """What a rank is to hold: the sum, or bytes by sender."""
        messages = self.messages[number]
        if self.kinds[number] == "sum":
            own = {i: data.to(torch.int32) for (i, _), (_, data) in messages.items()}
            return sum(own.values())
        return {i: data for (i, j), (_, data) in messages.items() if j == rank}

    def sent_bytes(self, rank: int) -> int:
        """What a rank puts on the wire: of unknown messages their length, and theirs alone."""
        total = 0
        for kind, messages in zip(self.kinds, self.messages, strict=True):
            out = [message for (i, _), message in messages.items() if i == rank]
            if kind == "sum":
                total += 2 * 4 * out[0][0] * (self.size - 1) // self.size
            for room, data in out if kind != "sum" else ():
                padded = kind == "unknown" and room <= PADDED_BYTES
                total += room if padded else data.numel()
                total += LENGTH_BYTES if kind == "unknown" else 0
        return total


def _bytes(draw: random.Random, size: int) -> torch.Tensor:
    return torch.tensor(list(draw.randbytes(size)), dtype=torch.uint8)


@contextmanager
def meeting(size: int, seed: int | None = None) -> Iterator[tuple[Fabric, list[Rank]]]:
    """Have so many ranks meet, in one process; some of their streams are ahead of others."""
    with (
        emulated_torch(seed),
        mock.patch.object(nccl, "Watcher", Later),
        mock.patch.object(nccl, "_WARM_UP_BYTES", 64),
        mock.patch.object(nccl_lengths, "PADDED_BYTES", PADDED_BYTES),
    ):
        fabric = Fabric(size)
        with ThreadPoolExecutor(size) as pool:
            ranks = list(pool.map(Rank, fabric.ranks))
        try:
            yield fabric, ranks
        finally:
            for rank in ranks:
                rank.transport.fail(TransportError("over"))


def carry_out(plan: Plan, draw: random.Random, ranks: list[Rank]) -> None:
    """Have all ranks do what they are to do, each at its own speed; until all have, or nobody can.

    Raises:
        AssertionError: They do not come to an end.
    """
    speeds = [draw.choice((1, 1, 20)) for _ in ranks]
    for _ in range(MOST_TURNS):
        rank = draw.choices(ranks, speeds)[0]
        with torch.cuda.stream(rank.stream):
            what = draw.choice(("ask", "look", "poll", "poll"))
            if what == "ask" and len(rank.asked) < len(plan):
                rank.ask(plan.operation(len(rank.asked), rank.group.rank()))
            elif what == "look":
                rank.watcher.look()
            else:
                rank.poll()
        if all(len(r.results) == len(plan) and r.group.stream.query() for r in ranks):
            return
    raise AssertionError("somebody waits for ever")


def check(plan: Plan, ranks: list[Rank]) -> None:
    """Require what is due, where it is due."""
    for rank in ranks:
        with torch.cuda.stream(rank.stream):
            for number, operation in enumerate(rank.asked):
                result, due = rank.results[number], plan.due(number, rank.group.rank())
                assert isinstance(result, dict), result
                rank.transport.land(operation)
                rank.stream.synchronize()
                if isinstance(operation, BackendAllReduce):
                    assert torch.equal(on_cpu(operation.tensor), due)
                    continue
                assert result.keys() == due.keys()
                for peer, data in due.items():
                    assert torch.equal(on_cpu(result[peer]), data)
        assert not rank.transport._under_way
        assert rank.transport.traffic.sent_bytes == plan.sent_bytes(rank.group.rank())


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_messages_arrive_in_their_length_whatever_comes_first_where(seed: int) -> None:
    draw = random.Random(seed)
    plan = Plan(draw)
    with meeting(plan.size, draw.choice((None, seed))) as (fabric, ranks):
        carry_out(plan, draw, ranks)
        assert not fabric.faults
        check(plan, ranks)


class Overtaking(InOrder):
    """What launches as soon as it can."""

    def add(self, launch: Launch) -> None:
        launch()

    def resume(self, rest: Launch) -> None:
        rest()


def test_ranks_that_launched_as_soon_as_they_could_would_meet_the_wrong_messages() -> None:
    def survives(seed: int) -> bool:
        draw = random.Random(seed)
        plan = Plan(draw)
        with meeting(plan.size, draw.choice((None, seed))) as (fabric, ranks):
            try:
                carry_out(plan, draw, ranks)
            except AssertionError:
                return False
            return not fabric.faults

    with mock.patch(f"{__name__}.MOST_TURNS", 3000):
        assert all(map(survives, range(10)))
        with mock.patch.object(nccl, "InOrder", Overtaking):
            assert not all(map(survives, range(10)))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_messages_wait_for_what_their_stream_was_given_before_and_not_since(
    exact: bool, before: bool
) -> None:
    computing = [True]
    with meeting(2) as (_, ranks):
        for rank in ranks:
            peer = 1 - rank.group.rank()
            room = torch.zeros(300, dtype=torch.uint8, device=DEVICE)
            data = on_gpu(torch.ones(300 if exact else 200, dtype=torch.uint8))
            with torch.cuda.stream(rank.stream):
                if before:
                    rank.stream.give(lambda: UNFINISHED if computing else None)
                rank.ask(Exchange({peer: data}, {peer: room}, exact, {peer: 300}))
                rank.stream.give(lambda: UNFINISHED if computing else None)
        look_at(ranks)
        assert arrived(ranks) == ([] if before else ranks)
        computing.clear()
        look_at(ranks)
        assert arrived(ranks) == ranks


def look_at(ranks: list[Rank]) -> None:
    for _ in range(4):
        for rank in ranks:
            rank.poll()
            with torch.cuda.stream(rank.stream):
                rank.watcher.look()


def arrived(ranks: list[Rank]) -> list[Rank]:
    """Those for which NCCL has done all, and that know it."""
    return [rank for rank in ranks if rank.results and rank.group.stream.query()]


@pytest.mark.parametrize("length", [-1, 301, 2**62])
def test_after_an_impossible_length_nothing_is_launched_and_nobody_hangs(length: int) -> None:
    with meeting(2) as (fabric, ranks):
        told: list[torch.Tensor] = []
        # The first length that lands, which is rank 0's or rank 1's.
        fabric.corrupt = lambda x: told.append(x) or len(told) > 1 or spoil(x, length)
        for rank in ranks:
            peer = 1 - rank.group.rank()
            with torch.cuda.stream(rank.stream):
                data = torch.ones(200, dtype=torch.uint8)
                room = torch.zeros(300, dtype=torch.uint8, device=DEVICE)
                rank.ask(Exchange({peer: on_gpu(data)}, {peer: room}, False, {peer: 300}))
                rank.ask(Exchange({peer: on_gpu(data)}, {peer: on_gpu(data)}))
        calls = [rank.group.calls for rank in ranks]
        look_at(ranks)
        (wronged,) = (rank for rank in ranks if isinstance(rank.results.get(0), PayloadError))
        (other,) = (rank for rank in ranks if rank is not wronged)
        assert f"says that it sent {length} bytes, of at most 300" in str(wronged.results[0])
        assert wronged.group.calls == calls[wronged.group.rank()], "nothing is launched any more"
        assert not wronged.results.keys() - {0}
        other.transport.land(other.asked[0])
        assert not other.stream.record_event().query(), "it waits for what never comes"
        for rank in ranks:  # as the verdict has them do
            rank.transport.fail(wronged.results[0])
        assert all(rank.stream.record_event().query() for rank in ranks)


def spoil(told: torch.Tensor, length: int) -> None:
    told.view(torch.int64).fill_(length)
