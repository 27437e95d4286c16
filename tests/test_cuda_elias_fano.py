"""The CUDA kernels of Elias-Fano, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels.cuda import elias_fano
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import elias_fano as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits

pytestmark = on_emulated_cuda

Indices = np.ndarray[Any, Any]


@st.composite
def index_sets(draw: st.DrawFn) -> tuple[Indices, int]:
    k, seed = draw(st.sampled_from((1, 2, 31, 32, 33, 100, 257, 1031))), draw(st.integers(0, 999))
    n = max(k, draw(st.sampled_from((1, 40, 1100, 2**20, 2**31, 2**32 - 2000))))
    drawn = np.random.default_rng(seed).integers(0, n, k)
    return np.unique(drawn).astype(np.uint32), n


def rooms(indices: Indices, n: int, low_bits: int, shift: int) -> tuple[Indices, slice, slice]:
    """A payload at any address, with bytes around it, and where its two parts are."""
    low = -(-indices.size * low_bits // 8)
    high = -(-((n - 1 >> low_bits) + indices.size) // 8)
    first = 8 + shift
    whole = poisoned(low + high + 32, np.uint8)
    return whole, slice(first, first + low), slice(first + low, first + low + high)


def check_parts(indices: Indices, n: int, low_bits: int, shift: int, below: int) -> None:
    ours, low, high = rooms(indices, n, low_bits, shift)
    due = ours.copy()
    written = elias_fano.write_parts(indices, below, low_bits, ours[low], ours[high], True)
    assert written == reference.write_parts(indices, below, low_bits, due[low], due[high], True)
    assert same_bits(ours, due)


@given(index_sets(), st.integers(0, 3), st.integers(0, 9))
def test_parts_equal_reference(case: tuple[Indices, int], fewer: int, shift: int) -> None:
    indices, n = case
    low_bits = max((n // indices.size).bit_length() - 1 - fewer, 0)
    check_parts(indices, n, low_bits, shift, n)


@given(index_sets(), st.integers(0, 9), st.integers(0, 2))
def test_nothing_is_written_where_the_indices_are_refused(
    case: tuple[Indices, int], shift: int, how: int
) -> None:
    indices, n = case
    low_bits = (n // indices.size).bit_length() - 1
    if how and indices.size > 1:
        at = indices.size // 2
        indices[at] = indices[at - 1] - (how == 2 and indices[at - 1] > 0)
        check_parts(indices, n, low_bits, shift, n)
    else:
        check_parts(indices, n, low_bits, shift, int(indices[-1]))


@given(index_sets(), st.integers(0, 9))
def test_an_index_that_is_too_large_writes_nothing_beside_where_nobody_looks(
    case: tuple[Indices, int], shift: int
) -> None:
    indices, n = case
    low_bits = (n // indices.size).bit_length() - 1
    ours, low, high = rooms(indices, n, low_bits, shift)
    due = ours.copy()
    reference.write_parts(indices, n, low_bits, due[low], due[high], True)
    wrong = indices.copy()
    wrong[-1] = 0xFFFFFFFF
    elias_fano.write_parts(wrong, n, low_bits, ours[low], ours[high], False)
    bits = [np.unpackbits(part[high], bitorder="little").nonzero()[0] for part in (ours, due)]
    assert bits[0][: indices.size - 1].tolist() == bits[1][:-1].tolist()
    ours[high], due[high], ours[low], due[low] = 0, 0, 0, 0
    assert same_bits(ours, due)


@given(index_sets(), st.sampled_from((0, 1, 5, 8)), st.integers(0, 3))
def test_joined_parts_equal_reference(case: tuple[Indices, int], low_bits: int, shift: int) -> None:
    indices, size = case[0], case[0].size
    whole = poisoned(size + 8, np.uint32)
    part = slice(shift, shift + size)
    whole[part] = indices + np.arange(size, dtype=np.uint32)
    due = whole.copy()
    lows = indices & np.uint32((1 << low_bits) - 1) if low_bits else poisoned(size, np.uint32)
    elias_fano.join(whole[part], lows, low_bits)
    reference.join(due[part], lows, low_bits)
    assert same_bits(whole, due)


@pytest.mark.parametrize("seed", range(4))
def test_many_indices_in_any_order_of_threads(seed: int) -> None:
    n = 3_000_000
    indices = np.unique(np.random.default_rng(seed).integers(0, n, 40_000)).astype(np.uint32)
    with running_on(Emulated(seed)):
        check_parts(indices, n, 6, seed, n)
        places, lows = indices + np.arange(indices.size, dtype=np.uint32), indices & np.uint32(7)
        due = places.copy()
        elias_fano.join(places, lows, 3)
        reference.join(due, lows, 3)
    assert same_bits(places, due)
