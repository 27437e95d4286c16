from __future__ import annotations

import math

import numpy as np
import pytest
from compressa.kernels import elias_fano_bytes, pack_increasing, unpack_increasing
from compressa.kernels.cpu import elias_fano as cpu
from compressa.kernels.reference import elias_fano as reference
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    n = draw(st.integers(0, 300) | st.sampled_from((2**20, 2**31, 2**32 - 40)))
    chosen = draw(st.sets(st.integers(0, n - 1), max_size=40)) if n else set()
    return np.array(sorted(chosen), np.uint32), n


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


@given(index_sets(), st.integers(0, 8))
def test_parts_equal_reference(case: tuple[np.ndarray, int], low_bits: int) -> None:
    indices, n = case
    if indices.size:
        sizes = (-(-indices.size * low_bits // 8), -(-((n - 1 >> low_bits) + indices.size) // 8))
        ours, specified = ([poisoned(size, np.uint8) for size in sizes] for _ in range(2))
        assert cpu.write_parts(indices, n, low_bits, *ours, True)
        assert reference.write_parts(indices, n, low_bits, *specified, True)
        assert all(same_bits(one, other) for one, other in zip(ours, specified, strict=True))
        for write in (cpu.write_parts, reference.write_parts):
            assert not write(indices, int(indices[-1]), low_bits, *ours, True)


@given(index_sets(), st.integers(0, 8))
def test_joined_parts_equal_reference(case: tuple[np.ndarray, int], low_bits: int) -> None:
    places = case[0] + np.arange(case[0].size, dtype=np.uint32)
    indices, ours, specified = case[0], places.copy(), places.copy()
    lows = indices & np.uint32((1 << low_bits) - 1)
    cpu.join(ours, lows, low_bits)
    reference.join(specified, lows, low_bits)
    assert same_bits(ours, specified)


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
