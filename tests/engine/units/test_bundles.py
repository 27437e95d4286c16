"""Bundles: what units do together is what each does alone, in fewer messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compressa.collectives.base import (
    BackendAllReduce,
    Compute,
    Exchange,
    LoweredSum,
    Program,
    SideBySide,
)
from compressa.engine.units.bundles import Bundle, Joining


def pattern(size: int, start: int) -> torch.Tensor:
    return torch.arange(start, start + size, dtype=torch.uint8)


def unit(number: int, sizes: list[int], log: list[Any], exact: bool = True) -> Program[None]:
    """Sends as many messages of these sizes to rank 1, and notes what it hears."""
    for turn, size in enumerate(sizes):
        start = yield Compute(lambda turn=turn: 50 * number + turn, "encode")
        room = torch.zeros(size, dtype=torch.uint8)
        received = yield Exchange({1: pattern(size, start)}, {1: room}, exact, {1: size})
        assert received[1].data_ptr() == room.data_ptr()
        log.append((number, turn, received[1].tolist()))


def run(program: Program[None], asked: list[Any]) -> None:
    """Carry a program out; a message from rank 1 is this rank's own, plus one."""
    answer: Any = None
    while True:
        try:
            operation = program.send(answer)
        except StopIteration:
            return
        asked.append(operation)
        if isinstance(operation, Compute):
            answer = operation.work()
        elif isinstance(operation, SideBySide):
            for each in operation.programs:
                run(each, asked)
            answer = None
        elif isinstance(operation, Exchange):
            for peer, room in operation.incoming.items():
                room.copy_(operation.outgoing[peer] + 1)
            answer = dict(operation.incoming)
        else:
            answer = None


def told(
    sizes: list[list[int]], *, together: bool, exact: bool = True, joins: bool = True
) -> tuple[Any, list[Any]]:
    log: list[Any] = []
    asked: list[Any] = []
    programs = [unit(i, own, log, exact) for i, own in enumerate(sizes)]
    if together:
        run(Bundle([], "all", joins=joins).program(programs), asked)
    else:
        for program in programs:
            run(program, asked)
    return sorted(log), asked


SIZES = [[3, 4], [5], [1, 2]]


@pytest.mark.parametrize("exact", [True, False])
def test_each_unit_sends_and_hears_what_it_would_alone(exact: bool) -> None:
    alone, _ = told(SIZES, together=False, exact=exact)
    assert told(SIZES, together=True, exact=exact)[0] == alone


def test_what_units_do_at_one_time_is_one_piece_of_work_and_one_message() -> None:
    _, asked = told(SIZES, together=True)
    slow = [type(x) for x in asked if not (isinstance(x, Compute) and x.quick)]
    assert slow == [Compute, Exchange, Compute, Exchange]
    assert [each.outgoing[1].numel() for each in asked if isinstance(each, Exchange)] == [9, 6]
    assert [each.capacity_bytes for each in asked if isinstance(each, Exchange)] == [{1: 9}, {1: 6}]


def test_messages_of_unknown_length_leave_side_by_side() -> None:
    _, asked = told(SIZES, together=True, exact=False)
    kinds = [type(each) for each in asked]
    assert kinds == [Compute, SideBySide, *[Exchange] * 3, Compute, SideBySide, *[Exchange] * 2]


def test_what_is_large_is_not_copied() -> None:
    alone, _ = told(SIZES, together=False)
    log, asked = told(SIZES, together=True, joins=False)
    assert log == alone
    assert sum(isinstance(each, SideBySide) for each in asked) == 2


def test_memory_is_the_same_in_every_step() -> None:
    bundle = Bundle([], "both")
    addresses = set()
    for _ in range(3):
        asked: list[Any] = []
        run(bundle.program([unit(i, [4], []) for i in range(2)]), asked)
        (exchange,) = (each for each in asked if isinstance(each, Exchange))
        addresses.add((exchange.outgoing[1].data_ptr(), exchange.incoming[1].data_ptr()))
    assert len(addresses) == 1


def test_units_that_do_different_things_do_them_side_by_side() -> None:
    values = torch.zeros(2)

    def other() -> Program[None]:
        yield Compute(lambda: None, "encode")
        yield BackendAllReduce(values)

    log: list[Any] = []
    asked: list[Any] = []
    run(Bundle([], "both").program([unit(0, [3], log), other()]), asked)
    assert [type(each) for each in asked] == [Compute, SideBySide, Exchange, BackendAllReduce]
    assert log == [(0, 0, [1, 2, 3])]


def test_sums_side_by_side_have_names_for_all_their_exchanges() -> None:
    """Else what comes next has the name of a message that a slow rank has not taken yet."""

    def sums(exchanges: int) -> Program[None]:
        yield LoweredSum(None, torch.zeros(2), exchanges, 8, 1)

    asked: list[Any] = []
    run(Bundle([], "both").program([sums(3), sums(2)]), asked)
    (bundle,) = (each for each in asked if isinstance(each, SideBySide))
    assert bundle.stages == 3


def test_programs_side_by_side_within_others_have_names_as_well() -> None:
    def segmented(segments: int) -> Program[None]:
        yield SideBySide([unit(i, [4, 4], [], exact=False) for i in range(segments)], 2)

    asked: list[Any] = []
    run(Bundle([], "both").program([segmented(3), segmented(2)]), asked)
    outer = next(each for each in asked if isinstance(each, SideBySide))
    assert outer.stages == 6
    assert outer.exchanges == 12


def test_all_programs_are_closed_when_one_fails() -> None:
    closed = []

    def waits() -> Program[None]:
        try:
            yield Compute(lambda: None, "encode")
            yield Compute(lambda: None, "decode")
        finally:
            closed.append(True)

    program = Bundle([], "both").program([waits(), waits()])
    program.send(None)
    program.close()
    assert closed == [True, True]


MIB = 1 << 20


@pytest.mark.parametrize(
    ("joining", "whole", "compressed"),
    [
        (Joining(), 0, 0),
        (Joining(small=True), 25 * MIB, 4 * MIB),
        (Joining(large=True), 0, 32 * MIB),
        (Joining(small=True, large=True), 25 * MIB, 32 * MIB),
    ],
)
def test_units_go_together_up_to_a_size(joining: Joining, whole: int, compressed: int) -> None:
    for least_bytes, ratio in ((whole, 1), (compressed, 4)):
        for dense_bytes in (1, least_bytes - 1, least_bytes):
            if dense_bytes > 0:
                full = joining.full(dense_bytes, dense_bytes // ratio)
                assert full is (dense_bytes >= least_bytes)
