"""A few faults of `make stress`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _ranks import Pools
from stress import COMPRESSORS, KINDS, MOMENTS, TRANSPORTS, Arena, Fault, draw, kinds_here

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def arena(pools: Pools) -> Iterator[Arena]:
    """Where faults are inflicted; time is told by `make stress`."""
    made = Arena(deadline_s=1.5, slack_s=15.0, zygote=pools.zygote)
    yield made
    made.close()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("kill", "gloo-group", "encode", 3, 0, 2, "topk"),
        Fault("kill", "tcp", "registration", 3, 1, 1, "int8"),
        Fault("late", "gloo", "exchange", 3, 0, 2, "int8"),
    ],
    ids=str,
)
def test_every_survivor_sees_a_fault_in_time_and_keeps_nothing(fault: Fault, arena: Arena) -> None:
    arena.inflict(fault)


@pytest.mark.netns
@pytest.mark.skipif("link" not in kinds_here(), reason="needs root, ip, tc and nsenter")
def test_every_rank_sees_that_a_link_is_down(arena: Arena) -> None:
    arena.inflict(Fault("link", "tcp", "between", 3, 1, 2, "topk"))


def test_a_hundred_faults_are_of_every_kind() -> None:
    faults = [draw(1, number) for number in range(100)]
    assert faults == [draw(1, number) for number in range(100)]
    for name, wanted in {
        "kind": KINDS,
        "transport": TRANSPORTS,
        "moment": MOMENTS,
        "compressor": COMPRESSORS,
        "size": (2, 3, 4),
        "culprit": (0, 1, 2, 3),
    }.items():
        assert {getattr(fault, name) for fault in faults} == set(wanted)
