from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compressa.kernels.chunks import (
    FLOAT32_MAX,
    NO_CHUNK,
    absorb_chunks,
    add_chunks,
    take_largest_chunks,
)
from compressa.kernels.reference import chunks as reference
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, gradients, poisoned, residual_for, same_bits

chunk_sizes = st.sampled_from((1, 7, 16, 64, 100, 256))


def norms_for(x: F32, chunk: int) -> np.ndarray:
    return poisoned(-(-x.size // chunk), np.float64)


@given(
    gradients(),
    chunk_sizes,
    st.sampled_from(SCALES),
    st.booleans(),
    st.integers(0, 99),
    st.sampled_from((FLOAT32_MAX, 1e20, 0.5)),
)
def test_absorbing_equals_reference(
    x: F32, chunk: int, scale: float, clear: bool, seed: int, largest: float
) -> None:
    ours, specified = x.copy(), x.copy()
    left = residual_for(x, seed)
    assert left is not None
    kept, expected = left.copy(), left.copy()
    norms, due = norms_for(x, chunk), norms_for(x, chunk)
    options = {"chunk": chunk, "scale": scale, "clear": clear, "largest": largest}
    absorb_chunks(ours, kept, norms, **options)
    with np.errstate(all="ignore"):
        reference.absorb_chunks(specified, expected, due, **options)
    assert same_bits(kept, expected)
    assert same_bits(norms, due)
    assert same_bits(ours, specified)
    assert np.isfinite(kept).all()
    assert same_bits(ours, np.zeros_like(x) if clear else x)


@given(gradients(specials=(), magnitudes=(0.0, 1e-40, 1.0, 1e30)), chunk_sizes, st.integers(0, 99))
def test_norms_are_those_of_the_chunks(x: F32, chunk: int, seed: int) -> None:
    residual, norms = residual_for(x, seed), norms_for(x, chunk)
    assert residual is not None
    absorb_chunks(x.copy(), residual, norms, chunk=chunk)
    exact = residual.astype(np.float64) ** 2
    due = [exact[low : low + chunk].sum() for low in range(0, x.size, chunk)]
    np.testing.assert_allclose(norms, due, rtol=1e-12, atol=0)


@given(
    st.sampled_from((0, 1, 63, 64, 65, 1000)),
    st.sampled_from((1, 7, 64, 100)),
    st.sampled_from((None, np.nan, np.inf)),
    st.booleans(),
    st.data(),
)
def test_taking_and_adding_equal_reference_and_undo_each_other(
    n: int, chunk: int, bad: float | None, hold: bool, data: st.DataObject
) -> None:
    residual = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    number = -(-n // chunk)
    drawn = data.draw(st.lists(st.integers(0, 9), min_size=number, max_size=number))
    norms, k = np.array(drawn, np.float32), data.draw(st.integers(0, number))
    if number and bad is not None:
        norms[data.draw(st.integers(0, number - 1))] = bad
    chosen, places = poisoned(k, np.uint32), poisoned(k, np.uint32)
    ours, specified = residual.copy(), residual.copy()
    values, due = (poisoned(k * chunk, np.float32) for _ in range(2))
    options = {"chunk": chunk, "hold": hold}
    take_largest_chunks(norms, ours, chosen, values, **options)
    reference.take_largest_chunks(norms, specified, places, due, **options)
    assert same_bits(ours, specified)
    assert same_bits(values, due)
    assert (chosen == places).all()
    if not np.isfinite(norms).all():
        assert same_bits(ours, residual)
        assert not values.any()
        assert (chosen == NO_CHUNK).all()
        return
    back = ours.copy()
    add_chunks(values, chosen, back, chunk=chunk)
    assert (back == residual).all()
    add_chunks(values, chosen, ours, chunk=chunk, weight=0.3)
    reference.add_existing_chunks(due, chosen, specified, chunk=chunk, weight=0.3)
    assert same_bits(ours, specified)


def test_more_chunks_than_one_piece_lists_are_chosen_alike() -> None:
    norms = np.random.default_rng(3).random(70_000, np.float32)
    residual = np.arange(1, 70_001, dtype=np.float32)
    chosen, values = np.zeros(50, np.uint32), poisoned(50, np.float32)
    for hold in (True, False):
        take_largest_chunks(norms, residual, chosen, values, chunk=1, hold=hold)
        assert chosen.tolist() == np.sort(np.argsort(-norms)[:50]).tolist()
        assert (values == (0 if hold else chosen + 1)).all()
    assert np.count_nonzero(residual == 0) == 50
    norms[69_999] = np.nan
    take_largest_chunks(norms, residual, chosen, values, chunk=1)
    assert (values == 0).all()
    assert (chosen == NO_CHUNK).all()


def test_what_is_taken_leaves_zeros_and_nothing_else_moves() -> None:
    residual, norms = np.arange(1, 11, dtype=np.float32), np.array([3, 1, 2], np.float32)
    values, chosen = poisoned(8, np.float32), np.zeros(2, np.uint32)
    take_largest_chunks(norms, residual, chosen, values, chunk=4)
    assert values.tolist() == [1, 2, 3, 4, 9, 10, 0, 0]
    assert residual.tolist() == [0, 0, 0, 0, 5, 6, 7, 8, 0, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_overflow_marks_its_chunk_and_stays_out_of_the_residual(bad: float) -> None:
    x, residual = np.ones(256, np.float32), np.full(256, 2, np.float32)
    x[70], residual[70] = bad, 3e38
    norms = np.empty(4)
    absorb_chunks(x, residual, norms, chunk=64)
    assert np.isfinite(norms).tolist() == [True, False, True, True]
    assert residual[70] == np.float32(3e38)
    assert (np.delete(residual, 70) == 3).all()


def test_bits_do_not_depend_on_slices() -> None:
    x, residual = np.random.default_rng(0).standard_normal((2, 1_000_003)).astype(np.float32)
    results = []
    for threads in (1, 3):
        left, norms = residual.copy(), np.empty(-(-x.size // 192))
        with ThreadPoolExecutor(2) as pool, Team(pool, threads).enlisted():
            absorb_chunks(x, left, norms, chunk=192)
        results.append((left, norms))
    assert same_bits(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])


@pytest.mark.parametrize("chosen", [[3], [2**32 - 1], [0, 3]])
def test_refuses_chunks_that_are_not_there_and_writes_nothing(chosen: list[int]) -> None:
    out, values = np.ones(10, np.float32), np.ones(4 * len(chosen), np.float32)
    numbers = np.array(chosen, np.uint32)
    with pytest.raises(ValueError, match="below 3"):
        add_chunks(values, numbers, out, chunk=4)
    assert (out == 1).all()


@given(
    st.lists(st.sampled_from((0, 1, 2, 3, 4, 2**31, NO_CHUNK)), unique=True),
    st.sampled_from((4, 5)),
)
def test_chunks_that_are_not_there_are_skipped_or_make_all_nan(
    numbers: list[int], chunk: int
) -> None:
    chosen = np.sort(np.array(numbers, np.uint32))
    values = np.arange(1, chunk * chosen.size + 1, dtype=np.float32)
    whole = np.random.default_rng(chunk).standard_normal(13).astype(np.float32)
    due = whole.copy()
    for number, own in zip(chosen.tolist(), values.reshape(-1, chunk), strict=True):
        part = due[number * chunk : (number + 1) * chunk]
        part += np.float32(0.3) * own[: part.size]
    for missing in ("skip", "nan"):
        if missing == "nan" and numbers and max(numbers) * chunk >= 13:
            due[:] = np.nan
        ours, specified = whole.copy(), whole.copy()
        add_chunks(values, chosen, ours, chunk=chunk, weight=0.3, missing=missing)
        options = {"chunk": chunk, "weight": 0.3, "or_nan": missing == "nan"}
        reference.add_existing_chunks(values, chosen, specified, **options)
        assert ours.tobytes() == due.tobytes()
        assert specified.tobytes() == due.tobytes()


def test_refuses_sizes_that_do_not_fit() -> None:
    x, chosen = np.zeros(10, np.float32), np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="chunk"):
        absorb_chunks(x, x.copy(), np.empty(10), chunk=0)
    with pytest.raises(ValueError, match="norms"):
        absorb_chunks(x, x.copy(), np.empty(2), chunk=4)
    with pytest.raises(ValueError, match="values"):
        take_largest_chunks(np.ones(3, np.float32), x, chosen, np.empty(3, np.float32), chunk=4)
    with pytest.raises(ValueError, match="norms"):
        take_largest_chunks(np.ones(4, np.float32), x, chosen, np.empty(4, np.float32), chunk=4)
    many = np.zeros(4, np.uint32)
    with pytest.raises(ValueError, match="can not be chosen"):
        take_largest_chunks(np.ones(3, np.float32), x, many, np.empty(16, np.float32), chunk=4)
    with pytest.raises(ValueError, match="missing"):
        add_chunks(np.zeros(4, np.float32), chosen, x, chunk=4, missing="ignore")  # type: ignore[arg-type]
