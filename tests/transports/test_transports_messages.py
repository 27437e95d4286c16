"""What every transport owes: messages arrive whole, and what does not fit is refused."""

from __future__ import annotations

import pytest
from _ranks import Group, Pools, same
from _transport_calls import (
    all_to_all,
    leave_early,
    send_to_who_left,
    shorter_than_capacity,
    too_much_early,
    urgent_overtakes,
    wrong_length,
)
from _transports import ON_HOST, TAGGED

pytestmark = pytest.mark.ranks

FRAME_HEADER_BYTES = 48
HAS_LEFT = "rank 1 is lost: it has left the training"


@pytest.mark.parametrize("kind", ON_HOST)
@pytest.mark.parametrize("size", [2, 4])
def test_all_messages_arrive(kind: str, size: int, pools: Pools) -> None:
    sizes = [1, 511, 512, 513, 5000, 31, 20_000]
    for result in pools.get(size).run(all_to_all, kind=kind, sizes=sizes):
        assert (result["wrong"], result["failures"]) == (0, 0)
        overhead = result["sent_bytes"] - result["payload_bytes"]
        assert len(sizes) * FRAME_HEADER_BYTES <= overhead < 0.3 * result["payload_bytes"]
        assert result["messages"] == len(sizes) * (size - 1)


@pytest.mark.parametrize("kind", TAGGED)
def test_tagged_messages_match_in_any_order(kind: str, four: Group) -> None:
    sizes = [100 + 300 * (unit % 5) for unit in range(40)]
    for result in four.run(all_to_all, kind=kind, sizes=sizes, reverse=True):
        assert (result["wrong"], result["failures"]) == (0, 0)


@pytest.mark.parametrize("kind", ON_HOST)
def test_messages_may_be_shorter_than_their_buffers(kind: str, two: Group) -> None:
    lengths = two.run(shorter_than_capacity, kind=kind)
    assert lengths == [[701, 2, 1301], [700, 1, 1300]]


@pytest.mark.parametrize("kind", TAGGED)
def test_an_urgent_message_overtakes_a_long_one(kind: str, two: Group) -> None:
    """The long one is more than the kernels of both ends take at once."""
    assert two.run(urgent_overtakes, kind=kind, frames=60_000)[1] == [1, 0]


@pytest.mark.parametrize("kind", TAGGED)
def test_what_nobody_asked_for_is_limited(kind: str, two: Group) -> None:
    refused = two.run(too_much_early, kind=kind, limit_bytes=1000, size=1001)
    assert "1001 bytes that nobody waits for" in refused[1]
    taken = two.run(too_much_early, kind=kind, limit_bytes=1000, size=1000, within_s=1.0)
    assert same(taken) == ""


@pytest.mark.parametrize("kind", TAGGED)
@pytest.mark.parametrize(("sent", "due"), [(101, 100), (100, 3000)])
def test_another_length_is_refused(sent: int, due: int, kind: str, two: Group) -> None:
    said = two.run(wrong_length, kind=kind, sent=sent, due=due)[1]
    assert f"rank 0 sends {sent} bytes" in said
    assert f"{due} are due" in said


@pytest.mark.parametrize("kind", TAGGED)
def test_a_goodbye_ends_the_wait(kind: str, two: Group) -> None:
    assert two.run(leave_early, kind=kind) == [HAS_LEFT, ""]


@pytest.mark.parametrize("kind", TAGGED)
def test_sending_to_who_has_left_is_a_loss(kind: str, two: Group) -> None:
    assert two.run(send_to_who_left, kind=kind) == [HAS_LEFT, ""]
