from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import CPU, Array, alike, backends, odd, on_every_backend
from compressa.kernels import (
    index_width,
    pack_bitmap,
    pack_bits,
    packed_bytes,
    reference,
    unpack_bitmap,
    unpack_bits,
)
from compressa.kernels.cuda import bitpack as cuda
from compressa.kernels.cuda._device import CTA, launch, running_on
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits

SIZES = st.integers(0, 70) | st.sampled_from((127, 257, 1031))
shifts = st.integers(0, 17)
seeds = st.integers(0, 2**32)
densities = st.sampled_from((0.0, 0.01, 0.3, 0.9, 1.0))


def values_of(n: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32)


def chosen(n: int, density: float, seed: int) -> np.ndarray[Any, Any]:
    return np.flatnonzero(np.random.default_rng(seed).random(n) < density).astype(np.uint32)


@pytest.mark.parametrize(
    ("n", "width"),
    [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (2**31, 31), (2**31 + 1, 32), (2**32, 32)],
)
def test_index_width_is_the_fewest_bits(n: int, width: int) -> None:
    assert index_width(n) == width


def check_stream(n: int, width: int, shift: int, seed: int) -> None:
    """Packed at any address, and unpacked again; the stream is the number with those digits."""
    values = odd(values_of(n, seed), shift % 4)[1]
    mask = np.uint32((1 << width) - 1)

    def run(kernels: Any) -> list[Array]:
        stream, packed = odd(poisoned(packed_bytes(n, width), np.uint8), shift)
        whole, back = odd(poisoned(n, np.uint32), shift % 4)
        kernels.pack_bits(values, width, packed)
        kernels.unpack_bits(packed, width, back)
        return [stream, whole]

    stream, back = alike("bitpack", run, reads=[values])
    assert same_bits(back, odd(values & mask, shift % 4)[0])
    if n <= 1031:
        digits = b"".join(f"{int(v):0{width}b}"[::-1].encode() for v in values & mask)
        packed = stream[shift : shift + packed_bytes(n, width)]
        bits = np.unpackbits(packed, bitorder="little")
        assert (bits[: len(digits)] + ord("0")).tobytes() == digits
        assert not bits[len(digits) :].any()  # unused bits are zero


@on_every_backend
@given(SIZES, st.integers(1, 32), shifts, seeds)
def test_streams_equal_reference_and_come_back(n: int, width: int, shift: int, seed: int) -> None:
    check_stream(n, width, shift, seed)


@on_every_backend
@pytest.mark.parametrize("width", range(1, 33))
def test_every_width_at_an_odd_address(width: int) -> None:
    check_stream(333, width, width % 5, width)


@on_every_backend
@pytest.mark.parametrize(("width", "shift"), [(1, 0), (7, 3), (13, 0), (29, 1), (32, 2)])
def test_threads_take_more_than_one_iteration_of_a_stream(width: int, shift: int) -> None:
    n = 3 * 16 * CTA * 32 // width
    check_stream(n, width, shift, 1)


def test_bits_above_the_width_are_dropped() -> None:
    out = poisoned(1, np.uint8)
    pack_bits(np.array([0xFFFFFFFD, 1], np.uint32), 2, out)
    assert out.tolist() == [0b0101]


def test_golden_bytes() -> None:
    out = poisoned(4, np.uint8)
    pack_bits(np.array([0x3FF, 0x001, 0x200], np.uint32), 10, out)
    assert out.tobytes() == bytes([0xFF, 0x07, 0x00, 0x20])


def lists(kernels: Any, bitmap: Array, n: int, indices: Array) -> bool:
    """Whether elements were listed; a backend says so, the public function raises where not."""
    try:
        return kernels.unpack_bitmap(bitmap, n, indices) is not False
    except ValueError:
        return False


def check_bitmap(indices: Array, n: int, shift: int, **how: Any) -> None:
    """Packed at any address, and listed again."""
    due = np.unique(indices)

    def run(kernels: Any) -> list[Any]:
        whole, bitmap = odd(poisoned(packed_bytes(n, 1), np.uint8), shift)
        everything, found = odd(poisoned(due.size, np.uint32), 2)
        kernels.pack_bitmap(indices, n, bitmap)
        return [lists(kernels, bitmap, n, found), whole, everything]

    listed, _, everything = alike("bitpack", run, reads=[indices], **how)
    assert listed
    assert same_bits(everything, odd(due, 2)[0])


@on_every_backend
@given(SIZES, densities, shifts, seeds)
def test_bitmaps_equal_reference(n: int, density: float, shift: int, seed: int) -> None:
    check_bitmap(chosen(n, density, seed), n, shift)


@on_every_backend
@pytest.mark.parametrize("density", [0.002, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("shift", [0, 3])
def test_long_bitmaps(density: float, shift: int) -> None:
    check_bitmap(chosen(500_003, density, shift), 500_003, shift, orders=[int(10 * density)])


@on_emulated_cuda
def test_tiles_of_more_than_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_TILES", 3)
    check_bitmap(chosen(200_007, 0.4, 1), 200_007, 5)


@on_every_backend
@pytest.mark.parametrize("seed", range(6))
def test_indices_in_any_order_and_twice_make_the_same_bitmap(seed: int) -> None:
    indices = np.random.default_rng(seed).integers(0, 700, 500, dtype=np.uint32)
    check_bitmap(indices, 700, seed, orders=[seed])


def bitmap_of(indices: Array, n: int, shift: int) -> Array:
    bitmap = odd(poisoned(packed_bytes(n, 1), np.uint8), shift)[1]
    with reference():
        pack_bitmap(indices, n, bitmap)
    return bitmap


@on_every_backend
@given(SIZES.filter(bool), densities, shifts, seeds, st.integers(-3, 3))
def test_other_numbers_of_bits_are_refused_and_stay_in_their_room(
    n: int, density: float, shift: int, seed: int, more: int
) -> None:
    indices = chosen(n, density, seed)
    bitmap, room = bitmap_of(indices, n, shift), max(indices.size + more, 0)
    for name, kernels, context in backends("bitpack"):
        whole, found = odd(poisoned(room, np.uint32), 10)
        due, listed = whole.copy(), min(room, indices.size)
        with context:
            assert lists(kernels, bitmap, n, found) == (room == indices.size)
        if name != CPU or room == indices.size:  # a GPU, which nobody waits for, lists what it can
            due[10 : 10 + listed] = indices[:listed]
        assert same_bits(whole, due)


@on_every_backend
@pytest.mark.parametrize("n", [1, 5, 9, 1030])
def test_bits_from_the_end_on_are_refused(n: int) -> None:
    for bit in range(n % 8, 8):
        bitmap = bitmap_of(np.array([0], np.uint32), n, 3)
        bitmap[-1] |= np.uint8(1 << bit)
        for _, kernels, context in backends("bitpack"):
            with context:
                assert not lists(kernels, bitmap, n, poisoned(2, np.uint32))


@pytest.mark.parametrize(
    "bitmap", [[0xFE, 0x02], [0xFF, 0x01], [0x7F, 0x00], [0x00, 0x80]], ids=lambda b: bytes(b).hex()
)
def test_bad_bitmap_writes_nothing(bitmap: list[int]) -> None:
    indices, given = np.full(8, 77, np.uint32), np.array(bitmap, np.uint8)
    with pytest.raises(ValueError, match="the bitmap has not 8 bits set, all below 9"):
        unpack_bitmap(given, 9, indices)
    assert (indices == 77).all()
    with reference(), pytest.raises(ValueError, match="the bitmap has not 8 bits set"):
        unpack_bitmap(given, 9, indices)
    assert (indices == 77).all()


@on_emulated_cuda
@pytest.mark.parametrize("n", [0, 1, 7, 255, 2048, 2049, 7001])
def test_counts_become_positions(n: int) -> None:
    counts = np.random.default_rng(n).integers(0, 2**40, n + 1)
    due = np.concatenate(([0], np.cumsum(counts[:-1])))
    with running_on(Emulated(n)):
        launch("bitpack", "scan_counts", 1, CTA, counts, np.int64(n))
    assert same_bits(counts, due)


def check_indices(indices: Array, end: int, **how: Any) -> tuple[bool, bool]:
    """Whether all are below an end, and whether they increase; as all backends say."""

    end = max(end, not indices.size)  # nobody asks of nothing

    def run(kernels: Any) -> list[bool]:
        return [bool(f(indices, end)) for f in (kernels.are_below, kernels.is_increasing)]

    found = alike("bitpack", run, reads=[indices], **how)
    numbers = indices.tolist()
    below = all(number < end for number in numbers)
    assert list(found) == [below, below and numbers == sorted(set(numbers))]
    return bool(found[0]), bool(found[1])


@on_every_backend
@given(st.lists(st.integers(0, 2**32 - 1), max_size=6), st.sampled_from((1, 7, 2**31, 2**32)))
def test_indices_are_below_and_increase_as_specified(drawn: list[int], n: int) -> None:
    for numbers in (drawn, sorted(drawn), sorted({number % n for number in drawn})):
        check_indices(np.array(numbers, np.uint32), n)


@on_every_backend
@given(SIZES, st.integers(0, 3), seeds, st.integers(-1, 1))
def test_one_that_is_too_large_is_seen(n: int, shift: int, seed: int, more: int) -> None:
    indices = odd(values_of(n, seed) >> np.uint32(seed % 32), shift)[1]
    check_indices(indices, max(int(indices.max(initial=0)) + more, 0))


@on_every_backend
@given(SIZES, st.integers(0, 3), seeds, st.none() | st.tuples(st.floats(0, 1), st.booleans()))
def test_one_step_that_does_not_increase_is_seen(
    n: int, shift: int, seed: int, bad: tuple[float, bool] | None
) -> None:
    whole = np.unique(values_of(n + 40, seed))[: n + 4]
    if n > 1 and bad:
        at = shift + 1 + int(bad[0] * (n - 2))
        whole[at] = whole[at - 1] - (bad[1] and whole[at - 1] > 0)
    indices = whole[shift : shift + n]
    largest = int(indices.max(initial=0))
    for end in (2**32, largest + 1, largest):
        check_indices(indices, end)


@on_every_backend
@pytest.mark.parametrize("index", [1, 20_001, 40_001])
def test_one_among_many_decides(index: int) -> None:
    indices = np.arange(70_001, dtype=np.uint32)
    assert check_indices(indices, 70_001, orders=range(2))[1]
    assert not check_indices(indices, 70_000, orders=range(2))[1]
    indices[index] = 90_000
    assert check_indices(indices, 90_001, orders=range(2)) == (True, False)
    assert not check_indices(indices, 90_000, orders=range(2))[0]


@on_every_backend
def test_indices_up_to_the_end_of_their_range() -> None:
    indices = np.array([0, 2**31, 2**32 - 1], np.uint32)
    assert check_indices(indices, 2**32) == (True, True)
    assert check_indices(indices, 2**32 - 1) == (False, False)
    assert check_indices(indices[::-1].copy(), 2**32) == (True, False)


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
