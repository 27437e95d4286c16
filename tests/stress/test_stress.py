"""A few schedules of `make stress`; and that what is broken on purpose is found out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _ranks import Pools
from _stress_arena import Arena, kinds_here, transports_here
from _stress_invariants import InvariantError, Invariants
from _stress_ranks import open_things
from _stress_schedules import COMPRESSORS, KINDS, LASTING, STEPS, TRANSPORTS, Fault, Schedule, draw

pytestmark = pytest.mark.ranks
_COUNT = 200


@pytest.fixture(scope="module")
def arena(pools: Pools) -> Iterator[Arena]:
    """Where schedules are run; time is told by `make stress`."""
    made = Arena(deadline_s=2.5, slack_s=15.0, zygote=pools.zygote)
    yield made
    made.close()


def schedule(transport: str, compressor: str, *faults: Fault, network: bool = False) -> Schedule:
    return Schedule(transport, compressor, 4 if len(faults) > 3 else 3, network, faults)


@pytest.mark.parametrize(
    "chosen",
    [
        schedule(
            "tcp",
            "topk",
            Fault("child", 3, 2, "between", 0),
            Fault("flip", 1, 2, "exchange", 0),
            Fault("kill", 3, 3, "exchange", 0),
            Fault("kill", 2, 3, "reform", 0),
        ),
        schedule(
            "tcp",
            "int8",
            Fault("header", 0, 2, "exchange", 2),
            Fault("stop", 2, 3, "encode", 0),
            Fault("size", 1, 3, "exchange", 1),
        ),
        schedule(
            "gloo-group",
            "powersgd",
            Fault("pause", 0, 2, "exchange", 0),
            Fault("part", 1, 2, "between", 0),
            Fault("away", 2, 3, "between", 0),
        ),
        schedule(
            "tcp",
            "none",
            Fault("late", 2, 2, "encode", 0),
            Fault("save", 0, 3, "between", 0),
            Fault("broadcast", 1, 3, "between", 0),
        ),
        schedule("tcp", "int8", Fault("kill", 1, -1, "registration", 2)),
        schedule("tcp", "topk", Fault("kill", 0, STEPS, "close", 0)),
    ],
    ids=str,
)
def test_what_must_hold_does_whatever_happens(chosen: Schedule, arena: Arena) -> None:
    arena.run(chosen)


@pytest.mark.skipif("mpi" not in transports_here(), reason="needs mpi4py and mpiexec")
def test_ranks_end_in_order_after_one_has_called_something_alone_over_mpi(arena: Arena) -> None:
    arena.run(schedule("mpi", "topk", Fault("broadcast", 0, 2, "between", 0)))


@pytest.mark.netns
@pytest.mark.skipif("link" not in kinds_here(), reason="needs root, ip, tc and nsenter")
def test_it_holds_when_links_go_down(arena: Arena) -> None:
    down, up = Fault("link", 1, 3, "between", 0), Fault("outage", 2, 2, "between", 0)
    arena.run(schedule("tcp", "topk", up, down, network=True))


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("replicas", Fault("differ", 1, STEPS, "finish", 0)),
        ("mass", Fault("lose", 1, 3, "between", 0)),
        ("left", Fault("keep", 1, STEPS, "close", 0)),
        ("calls", Fault("kill", 1, STEPS + 1, "between", 0)),
    ],
    ids=str,
)
def test_what_is_broken_on_purpose_is_found_out(what: str, fault: Fault, arena: Arena) -> None:
    with pytest.raises(InvariantError, match=rf"^{what}: .*"):
        arena.run(schedule("tcp", "topk", fault))


def test_threads_are_counted_while_some_end() -> None:
    """One that ended between the list of threads and its children had failed a schedule."""
    over = threading.Event()

    def start_and_join() -> None:
        while not over.is_set():
            brief = threading.Thread(target=int)
            brief.start()
            brief.join()

    busy = threading.Thread(target=start_and_join)
    busy.start()
    try:
        assert all(open_things()["threads"] >= 2 for _ in range(500))
    finally:
        over.set()
        busy.join()


@pytest.fixture
def must(tmp_path: Path) -> Invariants:
    """What must hold after rank 1 was killed and rank 2 has sent a frame with a flipped bit."""
    faults = Fault("kill", 1, 2, "encode", 0), Fault("flip", 2, 2, "exchange", 0)
    for number in range(len(faults)):
        (tmp_path / str(number)).touch()
    return Invariants(schedule("tcp", "topk", *faults), tmp_path, 4.0, 1.0)


def lost(**how: Any) -> dict[str, Any]:
    seen = {"type": "PeerLost", "message": "", "ranks": [1], "senders": [], "at_s": time.time()}
    return seen | how


def corrupt(*senders: int) -> dict[str, Any]:
    return lost(type="PayloadError", ranks=[], senders=list(senders))


def test_what_is_right_is_not_found_fault_with(must: Invariants) -> None:
    must.failed({0: lost(), 2: lost()}, alike=True)
    must.blamed(0, corrupt(2))


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ("verdict", lost(ranks=[0])),
        ("verdict", lost(ranks=[0, 1])),
        ("verdict", lost(ranks=[])),
        ("verdict", lost(type="StateError")),
        ("verdict", lost(type="TransportError")),
        ("verdict", corrupt(0)),
        ("verdict", corrupt()),
        ("time", lost(at_s=time.time() + 3600)),
    ],
)
def test_a_wrong_verdict_is_found_out(what: str, seen: dict[str, Any], must: Invariants) -> None:
    with pytest.raises(InvariantError, match=f"^{what}: "):
        must.failed({0: seen, 2: seen}, alike=True)


def test_verdicts_that_differ_are_found_out(must: Invariants) -> None:
    with pytest.raises(InvariantError, match=r"^verdict: "):
        must.failed({0: lost(), 2: corrupt(2)}, alike=True)


def test_an_error_for_no_new_reason_is_found_out(must: Invariants) -> None:
    must.failed({0: lost(), 2: lost()}, alike=True)
    with pytest.raises(InvariantError, match=r"^verdict: without a fault"):
        must.failed({0: lost(), 2: lost()}, alike=True)


def test_a_fault_that_nobody_is_told_of_is_found_out(must: Invariants) -> None:
    done = {"parameters": "", "errors": [0.0], "steps": STEPS, "calls": []}
    with pytest.raises(InvariantError, match=r"^verdict: nobody was told"):
        must.finished({0: done, 2: done})


def test_replicas_that_differ_after_a_step_are_found_out(must: Invariants) -> None:
    must.trained({0: {"digests": {"1": "a", "2": "b"}}, 2: {"digests": {"1": "a"}}})
    with pytest.raises(InvariantError, match=r"^replicas: step 2"):
        must.trained({0: {"digests": {"2": "b"}}, 2: {"digests": {"2": "c"}}})


def test_a_seed_draws_the_same_schedules_again() -> None:
    assert [draw(1, n) for n in range(_COUNT)] == [draw(1, n) for n in range(_COUNT)]
    assert draw(1, 0) != draw(2, 0)


def test_schedules_are_of_every_kind() -> None:
    drawn = [draw(1, number) for number in range(_COUNT)]
    faults = [fault for each in drawn for fault in each.faults]
    assert {each.transport for each in drawn} == set(TRANSPORTS)
    assert {each.compressor for each in drawn} == set(COMPRESSORS)
    assert {each.size for each in drawn} == {3, 4}
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.rank for fault in faults} == {0, 1, 2, 3}
    moments = {"registration", "between", "encode", "exchange", "reform", "close"}
    assert {fault.moment for fault in faults} == moments


def test_bits_are_flipped_on_every_transport() -> None:
    drawn = [draw(1, number) for number in range(_COUNT)]
    flipped = {each.transport for each in drawn if any(f.kind == "flip" for f in each.faults)}
    assert flipped == set(TRANSPORTS)


def test_two_ranks_at_least_go_on() -> None:
    for number in range(_COUNT):
        drawn = draw(1, number)
        at_step = [f for f in drawn.faults if f.moment not in ("registration", "close")]
        lasting = {fault.rank for fault in at_step if fault.kind in LASTING}
        assert len(lasting) <= drawn.size - 2
