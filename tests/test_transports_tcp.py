"""The TCP transport carries every byte to its place between processes, and ends in order."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from _ranks import Group, same, settings

pytestmark = pytest.mark.ranks

JOBS = "_rank_jobs_transport"
ENDS = "_rank_jobs_transport_ends"
FRAME_HEADER_BYTES = 48
HAS_LEFT = "rank 1 is lost: it has left the training"


@pytest.mark.parametrize("size", [2, 4])
def test_all_messages_arrive(size: int, two: Group, four: Group) -> None:
    group = two if size == 2 else four
    sizes = [1, 511, 512, 513, 5000, 31, 20_000]
    frames = sum(-(-length // 512) for length in sizes)
    for result in group.run(f"{JOBS}.all_to_all", kind="tcp", sizes=sizes):
        assert (result["wrong"], result["failures"]) == (0, 0)
        overhead = result["sent_bytes"] - result["payload_bytes"]
        assert overhead == frames * FRAME_HEADER_BYTES * (size - 1)
        assert result["messages"] == len(sizes) * (size - 1)


def test_messages_match_in_any_order(four: Group) -> None:
    sizes = [100 + 300 * (unit % 5) for unit in range(40)]
    for result in four.run(f"{JOBS}.all_to_all", kind="tcp", sizes=sizes, reverse=True):
        assert (result["wrong"], result["failures"]) == (0, 0)


def test_more_than_the_kernels_hold_crosses_in_both_directions(two: Group) -> None:
    for result in two.run(f"{JOBS}.all_to_all", kind="tcp", sizes=[8 << 20, 10, 8 << 20]):
        assert (result["wrong"], result["failures"]) == (0, 0)


@pytest.mark.parametrize("connections", [2, 16])
def test_messages_are_striped_over_several_connections(connections: int, four: Group) -> None:
    sizes = [1, 511, 512, 513, 5000, 3 << 20]
    frames = sum(-(-length // 512) for length in sizes)
    job = f"{JOBS}.all_to_all"
    for result in four.run(job, kind="tcp", sizes=sizes, reverse=True, connections=connections):
        assert (result["wrong"], result["failures"]) == (0, 0)
        overhead = result["sent_bytes"] - result["payload_bytes"]
        assert overhead == frames * FRAME_HEADER_BYTES * 3
        assert result["messages"] == len(sizes) * 3


def test_training_has_the_same_bits_over_several_connections(two: Group) -> None:
    results = {}
    for count in (1, 4):
        config = settings("int8", exchange={"connections": count})
        result = same(two.run(f"{JOBS}.trained", config=config))
        assert result["connections"] == count
        results[count] = result["means"]
    assert results[1] == results[4]


def test_messages_may_be_shorter_than_their_buffers(two: Group) -> None:
    lengths = two.run(f"{JOBS}.shorter_than_capacity", kind="tcp")
    assert lengths == [[701, 2, 1301], [700, 1, 1300]]


def test_an_urgent_message_overtakes_a_long_one(two: Group) -> None:
    """The long one is more than the kernels of both ends take at once."""
    assert two.run(f"{JOBS}.urgent_overtakes", kind="tcp", frames=60_000)[1] == [1, 0]


def test_what_nobody_asked_for_is_limited(two: Group) -> None:
    refused = two.run(f"{JOBS}.too_much_early", kind="tcp", limit_bytes=1000, size=1001)
    assert "1001 bytes that nobody waits for" in refused[1]
    job = f"{JOBS}.too_much_early"
    assert same(two.run(job, kind="tcp", limit_bytes=1000, size=1000, within_s=1.0)) == ""


@pytest.mark.parametrize(("sent", "due"), [(99, 100), (101, 100), (3000, 100), (100, 3000)])
def test_another_length_is_refused(sent: int, due: int, two: Group) -> None:
    said = two.run(f"{JOBS}.wrong_length", kind="tcp", sent=sent, due=due)[1]
    assert f"rank 0 sends {sent} bytes" in said
    assert f"{due} are due" in said


def test_idle_ranks_are_not_lost_and_send_nothing(two: Group) -> None:
    for result in two.run(f"{JOBS}.idle", kind="tcp", seconds=1.5):
        assert result == {"failures": [], "beats": 0, "messages": 0}


def test_a_goodbye_ends_the_wait(two: Group) -> None:
    assert two.run(f"{ENDS}.leave_early", kind="tcp") == [HAS_LEFT, ""]


@pytest.mark.parametrize("kind", ["gloo", "tcp"])
def test_sending_to_who_has_left_is_a_loss(kind: str, two: Group) -> None:
    assert two.run(f"{ENDS}.send_to_who_left", kind=kind) == [HAS_LEFT, ""]


@pytest.mark.parametrize("connections", [1, 4])
def test_a_rank_that_gives_up_lets_the_other_end(connections: int, two: Group) -> None:
    """Rank 0 takes no more, and its memory is its own again; rank 1 hears that it left."""
    job = f"{ENDS}.fail_in_the_middle"
    first, second = two.run(job, kind="tcp", size=32 << 20, connections=connections)
    assert first["untouched"]
    assert first["failures"] == []
    assert second["failures"] == ["rank 0 is lost: it has left the training"]
    assert first["answers"] == second["answers"] == 0
    assert max(first["seconds"], second["seconds"]) < 8.0


@pytest.mark.parametrize(
    ("number", "connections"), [(signal.SIGKILL, 1), (signal.SIGTERM, 1), (signal.SIGKILL, 4)]
)
def test_a_rank_that_dies_ends_the_wait(
    number: signal.Signals, connections: int, fresh: Callable[[int], Group]
) -> None:
    group = fresh(2)
    job = f"{ENDS}.wait_for_the_dead"
    started = group.start(job, number=int(number), connections=connections)
    outcome = group.collect(started[:1], 20.0)[0]
    assert outcome.ok, outcome.explain()
    assert outcome.value["error"].startswith("rank 1 is lost: ")
    assert outcome.value["seconds"] < 5.0
    assert outcome.value["left"] == 0


@pytest.mark.parametrize("size", [2, 4])
def test_the_backend_sums_beside_named_messages(size: int, two: Group, four: Group) -> None:
    group, elems = (two, 1000) if size == 2 else (four, 1000)
    for result in group.run(f"{JOBS}.all_reduces", kind="tcp", elems=elems):
        assert result["sum"] == [size * (size + 1) / 2]
        assert result["failures"] == 0
        assert result["sent_bytes"] == 2 * 4 * elems * (size - 1) // size


@pytest.mark.parametrize("connections", [1, 4])
def test_nothing_stays_open(connections: int, two: Group) -> None:
    two.run(f"{ENDS}.reopen", kind="tcp", times=2, connections=connections)
    for files in two.run(f"{ENDS}.reopen", kind="tcp", times=6, connections=connections):
        assert files[-1] <= files[0] + 1


def test_a_transport_that_was_never_attached_can_be_closed(two: Group) -> None:
    assert same(two.run(f"{ENDS}.close_unattached")) == {
        "left": 0,
        "failures": 0,
        "quick": True,
    }
