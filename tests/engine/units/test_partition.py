"""Sizes of chunks and windows: what is configured, or what the measured link makes best."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.collectives.choice import Costs
from compressa.collectives.cost import Link
from compressa.config import load_config
from compressa.engine.units.partition import Sizes, kept_bytes, partition, wire
from compressa.parameters import ParameterInfo

MODEL = [ParameterInfo(0, "w", (4_250_000,))]
MBIT_200 = Costs(Link(message_s=5e-5, byte_s=4e-8))


def sizes(costs: Costs | None = None, **sections: Any) -> Sizes:
    return partition(load_config(sections), MODEL, costs)


def test_without_a_link_or_an_order_sizes_are_those_of_the_transport() -> None:
    assert sizes() == sizes(MBIT_200) == (256 << 10, 512 << 10)
    assert sizes(schedule={"policy": "credit"}) == (256 << 10, 512 << 10)


def test_a_link_and_an_order_make_chunks_of_the_square_root() -> None:
    """sqrt(17 MB * 200 us * 25 MB/s) = 291.5 kB, and what 25 MB/s bring in 5.05 ms."""
    chunk, credit = sizes(MBIT_200, schedule={"policy": "priority"})
    assert chunk == pytest.approx(291_500, abs=2048)
    assert credit == pytest.approx(chunk + 126_250, abs=1)


def test_where_messages_cost_the_wire_nothing_chunks_still_cost_a_core() -> None:
    free = Costs(Link(message_s=1e-6, byte_s=4e-8))
    policy = {"policy": "priority"}
    assert sizes(free, schedule=policy).chunk_bytes == sizes(MBIT_200, schedule=policy).chunk_bytes


@given(
    st.sampled_from(["fifo", "priority", "auto"]),
    st.none() | st.integers(1, 1 << 22),
    st.none() | st.integers(1, 1 << 22),
    st.none() | st.floats(1e-6, 1e-2),
)
def test_what_is_configured_counts_and_a_chunk_is_never_more_than_the_window(
    policy: str, chunk: int | None, credit: int | None, message_s: float | None
) -> None:
    if chunk is not None and credit is not None:
        credit += chunk
    given_sizes = {"chunk_bytes": chunk, "credit_bytes": credit}
    exchange = {name: size for name, size in given_sizes.items() if size is not None}
    costs = None if message_s is None else Costs(Link(message_s, 1e-8))
    found = sizes(costs, exchange=exchange, schedule={"policy": policy})
    assert found.chunk_bytes == (chunk or found.chunk_bytes) <= found.credit_bytes
    assert found.credit_bytes == (credit or found.credit_bytes)


def test_schedulers_see_the_link_as_the_transport_uses_it() -> None:
    assert wire(None) is None
    seen = wire(MBIT_200, Sizes(1000, 3000))
    assert (seen.bytes_per_s, seen.latency_s, seen.overhead_s) == (25e6, 5e-5, 5e-5)
    assert (seen.chunk_bytes, seen.credit_bytes) == (1000, 3000)


def test_what_a_slow_link_keeps_is_bounded_where_order_counts() -> None:
    """Twice what it carries in 5 ms and a latency: what is further ahead nothing overtakes."""
    mbit_12, mbit_1 = (Costs(Link(message_s=1e-4, byte_s=8 / rate)) for rate in (12e6, 1e6))
    by_need, fifo = (load_config({"schedule": {"policy": p}}) for p in ("priority", "fifo"))
    assert kept_bytes(by_need, mbit_12) == pytest.approx(2 * 7650, abs=2)
    assert kept_bytes(by_need, mbit_1) == 6 << 10
    assert kept_bytes(by_need, MBIT_200) is None
    assert kept_bytes(fifo, mbit_12) is None
    assert kept_bytes(by_need, None) is None
