from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from alike import Array, alike, odd, on_every_backend
from compressa.kernels import elias_fano_bytes, pack_increasing, unpack_increasing
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    n = draw(st.integers(0, 300) | st.sampled_from((2**20, 2**31, 2**32 - 40)))
    chosen = draw(st.sets(st.integers(0, n - 1), max_size=40)) if n else set()
    return np.array(sorted(chosen), np.uint32), n


@st.composite
def larger_sets(draw: st.DrawFn) -> tuple[Array, int]:
    """At least one index."""
    k, seed = draw(st.sampled_from((1, 2, 31, 32, 33, 100, 257, 1031))), draw(st.integers(0, 999))
    n = max(k, draw(st.sampled_from((1, 40, 1100, 2**20, 2**31, 2**32 - 2000))))
    return np.unique(np.random.default_rng(seed).integers(0, n, k)).astype(np.uint32), n


any_sets = larger_sets() | index_sets().filter(lambda case: case[0].size > 0)


@given(index_sets())
def test_round_trip_is_exact(case: tuple[np.ndarray, int]) -> None:
    indices, n = case
    packed = poisoned(elias_fano_bytes(indices.size, n), np.uint8)
    pack_increasing(indices, n, packed)
    out = poisoned(indices.size, np.uint32)
    unpack_increasing(packed, n, out)
    assert same_bits(out, indices)


@given(index_sets())
def test_bits_lie_where_the_format_says(case: tuple[np.ndarray, int]) -> None:
    indices, n = case
    packed = poisoned(elias_fano_bytes(indices.size, n), np.uint8)
    pack_increasing(indices, n, packed)
    if not indices.size:
        assert not packed.size
        return
    low_bits = int(math.log2(n // indices.size))
    split = math.ceil(indices.size * low_bits / 8)
    low, high = (int.from_bytes(part.tobytes(), "little") for part in np.split(packed, [split]))
    mask = (1 << low_bits) - 1
    due = enumerate(indices.tolist())
    assert low == sum((index & mask) << i * low_bits for i, index in due)
    assert high == sum(1 << (index >> low_bits) + i for i, index in enumerate(indices.tolist()))


def rooms(indices: Array, n: int, low_bits: int, shift: int) -> tuple[Array, slice, slice]:
    """A payload at any address, with bytes around it, and where its two parts are."""
    low = -(-indices.size * low_bits // 8)
    high = -(-((n - 1 >> low_bits) + indices.size) // 8)
    first = 8 + shift
    whole = poisoned(low + high + 32, np.uint8)
    return whole, slice(first, first + low), slice(first + low, first + low + high)


def check_parts(indices: Array, n: int, low_bits: int, shift: int, below: int, **how: Any) -> bool:
    """Return whether all backends have written them."""

    def run(kernels: Any) -> list[Any]:
        whole, low, high = rooms(indices, n, low_bits, shift)
        return [
            bool(kernels.write_parts(indices, below, low_bits, whole[low], whole[high], True)),
            whole,
        ]

    return bool(alike("elias_fano", run, reads=[indices], **how)[0])


@on_every_backend
@given(any_sets, st.integers(0, 8), st.integers(0, 9))
def test_parts_equal_reference(case: tuple[Array, int], fewer: int, shift: int) -> None:
    indices, n = case
    low_bits = max((n // indices.size).bit_length() - 1 - fewer, 0)
    assert check_parts(indices, n, low_bits, shift, n)


@on_every_backend
@given(any_sets, st.integers(0, 9), st.integers(0, 2))
def test_nothing_is_written_where_the_indices_are_refused(
    case: tuple[Array, int], shift: int, how: int
) -> None:
    indices, n = case[0].copy(), case[1]
    low_bits = (n // indices.size).bit_length() - 1
    if how and indices.size > 1:
        at = indices.size // 2
        indices[at] = indices[at - 1] - (how == 2 and indices[at - 1] > 0)
        assert not check_parts(indices, n, low_bits, shift, n)
    else:
        assert not check_parts(indices, n, low_bits, shift, int(indices[-1]))


@on_every_backend
@given(larger_sets(), st.integers(0, 9))
def test_an_index_that_is_too_large_writes_nothing_beside_where_nobody_looks(
    case: tuple[Array, int], shift: int
) -> None:
    indices, n = case
    low_bits = (n // indices.size).bit_length() - 1
    wrong = indices.copy()
    wrong[-1] = 0xFFFFFFFF

    def run(kernels: Any) -> list[Array]:
        whole, low, high = rooms(indices, n, low_bits, shift)
        on_gpu = kernels.__name__.startswith("compressa.kernels.cuda")
        given_indices = wrong if on_gpu else indices  # the others look at them first
        kernels.write_parts(given_indices, n, low_bits, whole[low], whole[high], False)
        bits = np.unpackbits(whole[high], bitorder="little").nonzero()[0]
        whole[high], whole[low] = 0, 0
        return [bits[: indices.size - 1], whole]

    alike("elias_fano", run)


@on_every_backend
@given(any_sets, st.integers(0, 8), st.integers(0, 3))
def test_joined_parts_equal_reference(case: tuple[Array, int], low_bits: int, shift: int) -> None:
    check_joined(case[0], low_bits, shift)


def check_joined(indices: Array, low_bits: int, shift: int, **how: Any) -> None:
    size = indices.size
    given_lows = indices & np.uint32((1 << low_bits) - 1)
    lows = given_lows if low_bits else poisoned(size, np.uint32)

    def run(kernels: Any) -> list[Array]:
        whole, positions = odd(indices + np.arange(size, dtype=np.uint32), shift)
        kernels.join(positions, lows, low_bits)
        return [whole]

    alike("elias_fano", run, **how)


@on_every_backend
@pytest.mark.parametrize("shift", range(4))
def test_many_indices_in_any_order_of_threads(shift: int) -> None:
    n = 3_000_000
    indices = np.unique(np.random.default_rng(shift).integers(0, n, 40_000)).astype(np.uint32)
    check_parts(indices, n, 6, shift, n, orders=[shift])
    check_joined(indices, 3, 0, orders=[shift])


@pytest.mark.parametrize("k", [1, 10, 100, 1000, 9999])
def test_size_is_within_half_a_bit_of_the_least(k: int) -> None:
    n = 10_000
    least = math.log2(math.comb(n, k)) if k < n else 0.0
    assert elias_fano_bytes(k, n) * 8 <= least + 0.5 * k + n / 2 * (2 * k > n) + 2 * k + 16
    if k <= n // 10:
        assert elias_fano_bytes(k, n) * 8 <= least + 0.7 * k + 16


@given(st.binary(min_size=9, max_size=9))
def test_any_bytes_are_increasing_indices_or_refused(raw: bytes) -> None:
    n, out = 64, poisoned(8, np.uint32)
    packed = np.frombuffer(raw, np.uint8)[: elias_fano_bytes(8, n)]
    try:
        unpack_increasing(packed, n, out)
    except ValueError:
        return
    assert (np.diff(out.astype(np.int64)) > 0).all()
    assert out.max() < n
    again = poisoned(packed.size, np.uint8)
    pack_increasing(out, n, again)
    assert same_bits(again, packed.copy())


@pytest.mark.parametrize(
    ("indices", "n"), [([3, 3], 10), ([4, 3], 10), ([3, 10], 10), ([0], 2**32), ([0, 1], 1)]
)
def test_refuses_what_does_not_increase_below_n(indices: list[int], n: int) -> None:
    array = np.array(indices, np.uint32)
    with pytest.raises(ValueError, match=r"indices|n must"):
        pack_increasing(array, n, np.zeros(elias_fano_bytes(array.size, n), np.uint8))
