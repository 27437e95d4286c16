"""Checks whose answers come later: nothing is written beside an array meanwhile, whatever comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from compressa.kernels import (
    ChunkForm,
    KernelUnavailable,
    add_coefficients,
    are_positions,
    check_increasing,
    check_indices,
    elias_fano_bytes,
    pack_bitmap,
    packed_bytes,
    return_unsent,
    scatter_add,
    select_at,
    starts_with,
    unpack_bitmap,
    unpack_increasing,
)
from compressa.kernels.cuda import answers_come_later, answers_later
from compressa.kernels.cuda._device import running_on
from emulated_cuda import Emulated, on_device, on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits

pytestmark = on_emulated_cuda

GUARD = 4096  # elements on either side: what is beside an array comes to light there
N = 700

Array = np.ndarray[Any, Any]


class Guarded:
    """An array with memory on either side that must stay as it is."""

    def __init__(self, values: Any, dtype: Any) -> None:
        inner = np.array(values, dtype)
        self._whole = poisoned(inner.size + 2 * GUARD, dtype)
        self.inner = self._whole[GUARD : GUARD + inner.size]
        self.inner[:] = inner
        self._before = self._whole.copy()
        self.on_gpu = on_device(self.inner)

    @property
    def intact(self) -> bool:
        """Whether nothing beside the array has changed."""
        edges = slice(None, GUARD), slice(GUARD + self.inner.size, None)
        return all(same_bits(self._whole[edge], self._before[edge]) for edge in edges)


@contextmanager
def later() -> Iterator[Array]:
    """Give the answer of all checks of a while."""
    answer = np.zeros(1, np.uint64)
    with answers_later(lambda: on_device(answer)):
        yield answer


def hostile(k: int, seed: int) -> Iterator[Array]:
    """Indices of which some, one, or all are not what they should be."""
    random = np.random.default_rng(seed)
    good = np.sort(random.permutation(N)[:k]).astype(np.uint32)
    for index in (0, k // 2, k - 1):
        for bad in (N, N + 1, N + 1000, 2**31, 2**32 - 1):
            one = good.copy()
            one[index] = bad
            yield one
    yield np.sort(random.integers(N, N + GUARD, k, dtype=np.uint32))
    yield random.integers(0, N + GUARD, k, dtype=np.uint32)
    yield np.full(k, N, np.uint32)


def check_writes(write: Callable[[Any, Any], None], dtype: Any, size: int, k: int) -> None:
    """See that a function writes where it should, and has a fault found."""
    for seed, indices in enumerate(hostile(k, k)):
        out = Guarded(np.zeros(size), dtype)
        with running_on(Emulated(seed)), later() as answer:
            write(on_device(indices), out.on_gpu)
        assert out.intact
        assert answer[0] == 1


@pytest.mark.parametrize("k", [1, 33, 600])
def test_sums_stay_in_their_array(k: int) -> None:
    values = on_device(np.ones(k, np.float32))
    check_writes(lambda indices, out: scatter_add(indices, values, out), np.float32, N, k)


def test_all_indices_that_are_right_are_added_beside_one_that_is_not() -> None:
    for indices in ([3, 5, N], [5, N + 7, 3]):
        out, values = Guarded(np.zeros(N), np.float32), on_device(np.ones(3, np.float32))
        with later():
            scatter_add(on_device(np.array(indices, np.uint32)), values, out.on_gpu)
        assert np.flatnonzero(out.inner).tolist() == [3, 5]
        assert out.intact


@pytest.mark.parametrize("k", [1, 33, 600])
def test_what_a_cast_lost_returns_to_its_array(k: int) -> None:
    exact, sent = (on_device(np.full(k, x, np.float32)) for x in (1.5, 1.0))

    def write(indices: Any, residual: Any) -> None:
        return_unsent(residual, indices, exact, sent)

    check_writes(write, np.float32, N, k)


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("k", [1, 33, 600])
def test_elements_are_taken_from_their_array(k: int, bad: bool) -> None:
    x = np.ones(N, np.float32)
    x[7] = np.nan if bad else 1.0
    values = Guarded(np.zeros(k), np.float32)

    def write(indices: Any, residual: Any) -> None:
        select_at(on_device(x), indices, values.on_gpu, residual=residual)

    check_writes(write, np.float32, N, k)
    assert values.intact


@pytest.mark.parametrize("k", [1, 33, 600])
def test_bits_are_set_in_their_bitmap(k: int) -> None:
    check_writes(lambda indices, out: pack_bitmap(indices, N, out), np.uint8, packed_bytes(N, 1), k)


@given(st.binary(min_size=100, max_size=100), st.integers(0, 300), st.integers(0, 99))
def test_any_bitmap_is_listed_in_its_room(raw: bytes, k: int, seed: int) -> None:
    bitmap, n = np.frombuffer(raw, np.uint8).copy(), 795
    due = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
    indices = Guarded(np.zeros(k), np.uint32)
    with running_on(Emulated(seed)), later() as answer:
        unpack_bitmap(on_device(bitmap), n, indices.on_gpu)
    assert indices.intact
    assert answer[0] == (due.size != k or bool((due >= n).any()))
    assert np.array_equal(indices.inner[: due.size], due[:k])


@given(st.binary(min_size=100, max_size=100), st.sampled_from((1, 8, 60, 90, 200)))
def test_any_bytes_become_indices_that_sums_survive(raw: bytes, k: int) -> None:
    n = 300
    packed = np.frombuffer(raw, np.uint8)[: elias_fano_bytes(k, n)].copy()
    indices, out = Guarded(np.zeros(k), np.uint32), Guarded(np.zeros(n), np.float32)
    with later() as answer:
        unpack_increasing(on_device(packed), n, indices.on_gpu)
        found = indices.inner.astype(np.int64)
        scatter_add(indices.on_gpu, on_device(np.ones(k, np.float32)), out.on_gpu)
    assert indices.intact
    assert out.intact
    right = bool((np.diff(found) > 0).all() and (found < n).all())
    assert answer[0] or right
    try:
        unpack_increasing(packed, n, np.zeros(k, np.uint32))
    except ValueError:
        assert answer[0] == 1
    else:
        assert answer[0] == 0


@given(
    st.binary(min_size=60, max_size=60), st.integers(1, 16), st.sampled_from((0, 17)), st.booleans()
)
def test_any_positions_are_transformed_in_their_array(
    raw: bytes, kept: int, columns: int, add: bool
) -> None:
    form, n = ChunkForm(chunk=16, kept=kept, columns=columns), 60
    count, position_bytes = form.sizes(n)
    positions = np.resize(np.frombuffer(raw, np.uint8), position_bytes)
    out, values = Guarded(np.zeros(n), np.float32), on_device(np.ones(count, np.float32))
    with later() as answer:
        add_coefficients(values, on_device(positions), out.on_gpu, form=form, add=add)
    assert out.intact
    assert answer[0] == (not are_positions(positions, form=form))


GOOD = np.array([1, 5, 9], np.uint32)
CHECKS: dict[str, Callable[[Array], None]] = {
    "below": lambda indices: check_indices(on_device(indices), 10),
    "increasing": lambda indices: check_increasing(on_device(indices), 10),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_fault_is_told_at_once_or_later(check: Callable[[Array], None]) -> None:
    bad = GOOD + np.uint32(1)
    check(GOOD)
    with pytest.raises(ValueError, match="indices are"):
        check(bad)
    with later() as answer:
        check(GOOD)
        assert answer[0] == 0
        check(bad)
        assert answer[0] == 1
        check(GOOD)
        assert answer[0] == 1, "a fault is not forgotten"
    with pytest.raises(ValueError, match="indices are"):
        check(bad)


def test_nothing_is_read_back_meanwhile() -> None:
    with mock.patch.object(Emulated, "read") as read, later() as answer:
        check_increasing(on_device(GOOD), 10)
        check_indices(on_device(GOOD), 10)
        assert starts_with(on_device(np.arange(9, dtype=np.uint8)), bytes(range(5)))
        assert answer[0] == 0
        assert starts_with(on_device(np.arange(9, dtype=np.uint8)), b"other")
        assert answer[0] == 1
    read.assert_not_called()


def test_an_answer_is_made_for_the_first_check_and_shared() -> None:
    make = mock.Mock(side_effect=lambda: on_device(np.zeros(1, np.uint64)))
    with answers_later(make):
        assert answers_come_later()
        make.assert_not_called()
        check_indices(on_device(GOOD[:0]), 1)
        make.assert_not_called()
        for _ in range(3):
            check_indices(on_device(GOOD), 10)
        make.assert_called_once_with()
    assert not answers_come_later()


def test_whiles_are_nested_and_end_with_an_error() -> None:
    with later() as outer:
        with later() as inner:
            check_indices(on_device(GOOD), 5)
            with pytest.raises(KernelUnavailable), later():
                raise KernelUnavailable
            check_indices(on_device(GOOD), 5)
        assert (inner[0], outer[0]) == (1, 0)
        check_indices(on_device(GOOD), 5)
        assert outer[0] == 1
    assert not answers_come_later()


def test_other_threads_go_on_waiting() -> None:
    with ThreadPoolExecutor(1) as pool, later():
        assert not pool.submit(answers_come_later).result()
