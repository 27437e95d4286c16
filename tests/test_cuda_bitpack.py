"""The CUDA kernels for bit streams and bitmaps, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import packed_bytes
from compressa.kernels.cuda import bitpack
from compressa.kernels.cuda._device import CTA, launch, running_on
from compressa.kernels.reference import bitpack as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits

pytestmark = on_emulated_cuda

GUARD = 24  # bytes on either side
SIZES = st.sampled_from((0, 1, 2, 3, 5, 8, 31, 32, 33, 63, 127, 257, 1031))
shifts = st.integers(0, 17)
seeds = st.integers(0, 2**32)
densities = st.sampled_from((0.0, 0.01, 0.3, 0.9, 1.0))


def guarded(size: int, shift: int) -> tuple[np.ndarray[Any, Any], slice]:
    """Bytes at any address, with some on either side, and where they are."""
    return poisoned(size + 2 * GUARD, np.uint8), slice(GUARD + shift, GUARD + shift + size)


def values_of(n: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32)


def chosen(n: int, density: float, seed: int) -> np.ndarray[Any, Any]:
    return np.flatnonzero(np.random.default_rng(seed).random(n) < density).astype(np.uint32)


def bitmap_of(indices: np.ndarray[Any, Any], n: int, shift: int) -> np.ndarray[Any, Any]:
    whole, part = guarded(packed_bytes(n, 1), shift)
    reference.pack_bitmap(indices, n, whole[part])
    return whole[part]


def check_stream(n: int, width: int, shift: int, seed: int) -> None:
    values, (ours, part) = (
        values_of(n + 3, seed)[shift % 4 :][:n],
        guarded((n * width + 7) // 8, shift),
    )
    due = ours.copy()
    bitpack.pack_bits(values, width, ours[part])
    reference.pack_bits(values, width, due[part])
    assert same_bits(ours, due)
    back = poisoned(n + 8, np.uint32)
    due_back = back.copy()
    where = slice(shift % 4, shift % 4 + n)
    bitpack.unpack_bits(ours[part], width, back[where])
    reference.unpack_bits(due[part], width, due_back[where])
    assert same_bits(back, due_back)


@given(SIZES, st.integers(1, 32), shifts, seeds)
def test_streams_equal_reference(n: int, width: int, shift: int, seed: int) -> None:
    check_stream(n, width, shift, seed)


@pytest.mark.parametrize("width", range(1, 33))
def test_every_width_at_an_odd_address(width: int) -> None:
    check_stream(333, width, width % 5, width)


@pytest.mark.parametrize(("width", "shift"), [(1, 0), (7, 3), (13, 0), (29, 1), (32, 2)])
def test_threads_take_more_than_one_turn_of_a_stream(width: int, shift: int) -> None:
    n = 3 * 16 * CTA * 32 // width
    check_stream(n, width, shift, 1)


@given(SIZES, densities, shifts, seeds)
def test_bitmaps_equal_reference(n: int, density: float, shift: int, seed: int) -> None:
    indices, (ours, part) = chosen(n, density, seed), guarded(packed_bytes(n, 1), shift)
    due = ours.copy()
    bitpack.pack_bitmap(indices, n, ours[part])
    reference.pack_bitmap(indices, n, due[part])
    assert same_bits(ours, due)
    found = poisoned(indices.size + 2, np.uint32)
    due_found = found.copy()
    assert bitpack.unpack_bitmap(ours[part], n, found[1:-1])
    assert reference.unpack_bitmap(ours[part], n, due_found[1:-1])
    assert same_bits(found, due_found)


@given(SIZES.filter(bool), densities, shifts, seeds, st.integers(-3, 3))
def test_other_numbers_of_bits_are_refused_and_stay_in_their_room(
    n: int, density: float, shift: int, seed: int, more: int
) -> None:
    indices = chosen(n, density, seed)
    bitmap, room = bitmap_of(indices, n, shift), max(indices.size + more, 0)
    found = poisoned(room + 20, np.uint32)
    due = found.copy()
    listed = min(room, indices.size)
    due[10 : 10 + listed] = indices[:listed]
    part = found[10 : 10 + room]
    assert bitpack.unpack_bitmap(bitmap, n, part) == (room == indices.size)
    assert same_bits(found, due)


@pytest.mark.parametrize("n", [1, 5, 9, 1030])
def test_bits_from_the_end_on_are_refused(n: int) -> None:
    for bit in range(n % 8, 8):
        bitmap = bitmap_of(np.array([0], np.uint32), n, 3)
        bitmap[-1] |= np.uint8(1 << bit)
        assert not bitpack.unpack_bitmap(bitmap, n, poisoned(2, np.uint32))


@pytest.mark.parametrize("seed", range(6))
def test_indices_in_any_order_and_twice_make_the_same_bitmap(seed: int) -> None:
    n = 700
    indices = np.random.default_rng(seed).integers(0, n, 500, dtype=np.uint32)
    ours, part = guarded(packed_bytes(n, 1), seed)
    due = ours.copy()
    with running_on(Emulated(seed)):
        bitpack.pack_bitmap(indices, n, ours[part])
    reference.pack_bitmap(indices, n, due[part])
    assert same_bits(ours, due)


@pytest.mark.parametrize("density", [0.002, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("shift", [0, 3])
def test_long_bitmaps(density: float, shift: int) -> None:
    n = 500_003
    indices = chosen(n, density, shift)
    bitmap = bitmap_of(indices, n, shift)
    with running_on(Emulated(int(10 * density))):
        found = poisoned(indices.size + 1, np.uint32)
        after = found[-1]
        assert bitpack.unpack_bitmap(bitmap, n, found[:-1])
        assert same_bits(found[:-1], indices)
        assert found[-1] == after
        again, part = guarded(bitmap.size, shift)
        bitpack.pack_bitmap(indices, n, again[part])
    assert same_bits(again[part], bitmap)


def test_tiles_of_more_than_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitpack, "_TILES", 3)
    n = 200_007
    indices = chosen(n, 0.4, 1)
    found = poisoned(indices.size, np.uint32)
    assert bitpack.unpack_bitmap(bitmap_of(indices, n, 5), n, found)
    assert same_bits(found, indices)


@pytest.mark.parametrize("n", [0, 1, 7, 255, 2048, 2049, 7001])
def test_counts_become_places(n: int) -> None:
    counts = np.random.default_rng(n).integers(0, 2**40, n + 1)
    due = np.concatenate(([0], np.cumsum(counts[:-1])))
    with running_on(Emulated(n)):
        launch("bitpack", "scan_counts", 1, CTA, counts, np.int64(n))
    assert same_bits(counts, due)


@given(SIZES, st.integers(0, 3), seeds, st.integers(-1, 1))
def test_one_that_is_too_large_is_seen(n: int, shift: int, seed: int, more: int) -> None:
    indices = (values_of(n + 4, seed) >> np.uint32(seed % 32))[shift : shift + n]
    end = max(int(indices.max(initial=0)) + more, 0)
    assert bitpack.are_below(indices, end) == reference.are_below(indices, end)


@given(SIZES, st.integers(0, 3), seeds, st.none() | st.tuples(st.floats(0, 1), st.booleans()))
def test_one_step_that_does_not_increase_is_seen(
    n: int, shift: int, seed: int, bad: tuple[float, bool] | None
) -> None:
    whole = np.unique(values_of(n + 40, seed))[: n + 4]
    if n > 1 and bad:
        at = shift + 1 + int(bad[0] * (n - 2))
        whole[at] = whole[at - 1] - (bad[1] and whole[at - 1] > 0)
    indices = whole[shift : shift + n]
    for end in (2**32, int(indices.max(initial=0)) + 1, int(indices.max(initial=0))):
        due = reference.is_increasing(indices, end)
        assert bitpack.is_increasing(indices, end) == due


@pytest.mark.parametrize("seed", range(3))
def test_one_among_many_decides(seed: int) -> None:
    indices = np.arange(70_001, dtype=np.uint32)
    with running_on(Emulated(seed)):
        assert bitpack.is_increasing(indices, 70_001)
        assert not bitpack.is_increasing(indices, 70_000)
        indices[20_000 * seed + 1] = 90_000
        assert not bitpack.is_increasing(indices, 100_000)
        assert bitpack.are_below(indices, 90_001)
        assert not bitpack.are_below(indices, 90_000)


def test_indices_up_to_the_end_of_their_range() -> None:
    indices = np.array([0, 2**31, 2**32 - 1], np.uint32)
    assert bitpack.is_increasing(indices, 2**32)
    assert not bitpack.is_increasing(indices, 2**32 - 1)
    assert not bitpack.is_increasing(indices[::-1].copy(), 2**32)
    assert bitpack.are_below(indices, 2**32)
    assert not bitpack.are_below(indices, 2**32 - 1)
