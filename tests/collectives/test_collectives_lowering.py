"""Lowering: tables of all ranks fit together, and say what the program does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.collectives.algorithms import ALGORITHMS, segmented
from compressa.collectives.lowering import SCRATCH, VALUES, Table, lowered
from compressa.collectives.rank_group import RankGroup

ITEM_BYTES = 4


def tables(name: str, size: int, elems: int, segments: int) -> list[Table]:
    all_reduce = segmented(ALGORITHMS[name], segments)
    return [
        lowered(all_reduce, elems, ITEM_BYTES, RankGroup.everyone(rank, size))
        for rank in range(size)
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
@given(
    size=st.integers(2, 9),
    elems=st.sampled_from([0, 1, 16, 17, 333]),
    segments=st.sampled_from([1, 3]),
)
def test_what_is_sent_is_received_at_the_same_stage(
    name: str, size: int, elems: int, segments: int
) -> None:
    sent, received = {}, {}
    for rank, table in enumerate(tables(name, size, elems, segments)):
        assert table.exchanges == segments * len(ALGORITHMS[name].stages(0, size))
        for hop in table.hops:
            for peer, extent in hop.sends.items():
                sent[rank, peer, hop.stage] = extent.size_bytes
            for peer, extent in hop.receives.items():
                received[peer, rank, hop.stage] = extent.size_bytes
    assert sent == received


@pytest.mark.parametrize("name", ALGORITHMS)
@given(size=st.integers(2, 9), elems=st.integers(0, 400), segments=st.sampled_from([1, 3]))
def test_nothing_is_outside_of_its_memory(name: str, size: int, elems: int, segments: int) -> None:
    for table in tables(name, size, elems, segments):
        limits = {VALUES: elems * ITEM_BYTES, SCRATCH: table.scratch_bytes}
        for hop in table.hops:
            additions = [extent for addition in hop.additions for extent in addition]
            for extent in (*hop.sends.values(), *hop.receives.values(), *additions):
                assert extent.offset_bytes >= 0
                assert extent.stop_bytes <= limits[extent.region]
        assert sum(part.size_bytes for part in table.parts) == elems * ITEM_BYTES


@pytest.mark.parametrize("name", ALGORITHMS)
@given(size=st.integers(2, 9), elems=st.integers(1, 400))
def test_what_is_added_as_it_comes_is_not_to_be_sent_any_more(
    name: str, size: int, elems: int
) -> None:
    for table in tables(name, size, elems, 1):
        for hop in table.hops:
            for peer in hop.receives:
                to = hop.fused(peer)
                if to is not None:
                    assert not any(to.overlaps(sent) for sent in hop.sends.values())
                    assert to.size_bytes == hop.receives[peer].size_bytes


def test_a_ring_sends_what_its_formula_says() -> None:
    for size in (2, 4, 8):
        for table in tables("ring", size, 16 * size, 1):
            assert table.sent_bytes == 2 * (size - 1) * 16 * ITEM_BYTES
            assert table.peers == min(2, size - 1)
