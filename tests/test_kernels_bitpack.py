from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels import (
    index_width,
    pack_bitmap,
    pack_bits,
    packed_bytes,
    unpack_bitmap,
    unpack_bits,
)
from compressa.kernels.cpu import bitpack as cpu
from compressa.kernels.reference import bitpack as reference
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits

widths = st.integers(1, 32)


@st.composite
def values_and_width(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    width, count = draw(widths), draw(st.integers(0, 50))
    seed = draw(st.integers(0, 2**32))
    values = np.random.default_rng(seed).integers(0, 2**width, count, dtype=np.uint32)
    return values, width


@pytest.mark.parametrize(
    ("n", "width"),
    [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (2**31, 31), (2**31 + 1, 32), (2**32, 32)],
)
def test_index_width_is_the_fewest_bits(n: int, width: int) -> None:
    assert index_width(n) == width


@given(values_and_width())
def test_round_trip_is_exact_and_equals_reference(case: tuple[np.ndarray, int]) -> None:
    values, width = case
    size_bytes = packed_bytes(values.size, width)
    ours, specified = poisoned(size_bytes, np.uint8), poisoned(size_bytes, np.uint8)
    pack_bits(values, width, ours)
    reference.pack_bits(values, width, specified)
    assert same_bits(ours, specified)
    back, specified_back = poisoned(values.size, np.uint32), poisoned(values.size, np.uint32)
    unpack_bits(ours, width, back)
    reference.unpack_bits(ours, width, specified_back)
    assert same_bits(back, values)
    assert same_bits(specified_back, values)


@given(values_and_width())
def test_stream_is_the_number_whose_digits_are_the_values(case: tuple[np.ndarray, int]) -> None:
    values, width = case
    out = poisoned(packed_bytes(values.size, width), np.uint8)
    pack_bits(values, width, out)
    number = sum(int(value) << i * width for i, value in enumerate(values))
    assert int.from_bytes(out.tobytes(), "little") == number  # so unused bits are zero


def test_bits_above_the_width_are_dropped() -> None:
    out = poisoned(1, np.uint8)
    pack_bits(np.array([0xFFFFFFFD, 1], np.uint32), 2, out)
    assert out.tolist() == [0b0101]


def test_golden_bytes() -> None:
    out = poisoned(4, np.uint8)
    pack_bits(np.array([0x3FF, 0x001, 0x200], np.uint32), 10, out)
    assert out.tobytes() == bytes([0xFF, 0x07, 0x00, 0x20])


@given(st.integers(0, 70), st.randoms(use_true_random=False))
def test_bitmap_round_trip_equals_reference(n: int, random: object) -> None:
    chosen = [i for i in range(n) if random.random() < 0.4]  # type: ignore[attr-defined]
    indices = np.array(chosen, np.uint32)
    ours, specified = poisoned((n + 7) // 8, np.uint8), poisoned((n + 7) // 8, np.uint8)
    pack_bitmap(indices, n, ours)
    reference.pack_bitmap(indices, n, specified)
    assert same_bits(ours, specified)
    back = poisoned(len(chosen), np.uint32)
    unpack_bitmap(ours, n, back)
    assert same_bits(back, indices)


@pytest.mark.parametrize(
    "bitmap", [[0xFE, 0x02], [0xFF, 0x01], [0x7F, 0x00], [0x00, 0x80]], ids=lambda b: bytes(b).hex()
)
def test_bad_bitmap_writes_nothing(bitmap: list[int]) -> None:
    indices, given = np.full(8, 77, np.uint32), np.array(bitmap, np.uint8)
    with pytest.raises(ValueError, match="the bitmap has not 8 bits set, all below 9"):
        unpack_bitmap(given, 9, indices)
    assert (indices == 77).all()
    assert not reference.unpack_bitmap(given, 9, indices)
    assert (indices == 77).all()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=6), st.sampled_from((1, 7, 2**31, 2**32)))
def test_indices_are_below_and_increase_as_specified(drawn: list[int], n: int) -> None:
    for numbers in (drawn, sorted(drawn), sorted({number % n for number in drawn})):
        indices = np.array(numbers, np.uint32)
        for name in ("is_increasing", "are_below"):
            assert getattr(cpu, name)(indices, n) == getattr(reference, name)(indices, n)
        increasing = numbers == sorted(set(numbers)) and all(number < n for number in numbers)
        assert reference.is_increasing(indices, n) == increasing
        assert reference.are_below(indices, n) == all(number < n for number in numbers)


def test_pack_bitmap_refuses_an_index_out_of_range() -> None:
    with pytest.raises(ValueError, match="not all of the 1 indices are below 9"):
        pack_bitmap(np.array([9], np.uint32), 9, np.empty(2, np.uint8))


@pytest.mark.parametrize("width", [0, 33])
def test_refuses_other_widths(width: int) -> None:
    with pytest.raises(ValueError, match="width"):
        pack_bits(np.zeros(0, np.uint32), width, np.zeros(0, np.uint8))


def test_refuses_a_stream_of_another_length() -> None:
    with pytest.raises(ValueError, match="packed must have shape"):
        unpack_bits(np.zeros(2, np.uint8), 5, np.zeros(2, np.uint32)[:1])
