from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, odd, on_every_backend
from compressa.kernels import reference
from compressa.kernels.chunks import (
    FLOAT32_MAX,
    NO_CHUNK,
    Missing,
    absorb_chunks,
    add_chunks,
    add_existing_chunks,
    take_largest_chunks,
)
from compressa.kernels.cuda import answers_later
from emulated_cuda import Emulated, on_device, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, SIZES, gradients, poisoned, residual_for, same_bits

chunk_sizes = st.sampled_from((1, 7, 16, 64, 100, 256, 1000, 1024, 1025))
LONG = (8191, 8192, 8193, 20_011)


def norms_for(x: F32, chunk: int) -> np.ndarray:
    return poisoned(-(-x.size // chunk), np.float64)


def check_absorb(
    x: F32,
    chunk: int,
    seed: int,
    loss_scale: float,
    clear: bool,
    largest: float = FLOAT32_MAX,
    **how: Any,
) -> None:
    left = residual_for(x, seed)
    assert left is not None

    def run(kernels: Any) -> list[Array]:
        given_x, kept, norms = x.copy(), left.copy(), norms_for(x, chunk)
        options = {"chunk": chunk, "loss_scale": loss_scale, "clear": clear, "largest": largest}
        kernels.absorb_chunks(given_x, kept, norms, **options)
        return [given_x, kept, norms]

    given_x, kept, _ = alike("chunks", run, **how)
    assert np.isfinite(kept).all()
    assert same_bits(given_x, np.zeros_like(x) if clear else x)


@on_every_backend
@given(
    gradients(sizes=(*SIZES, 2500)),
    chunk_sizes,
    st.sampled_from(SCALES),
    st.booleans(),
    st.integers(0, 99),
    st.sampled_from((FLOAT32_MAX, 1e20, 0.5)),
)
def test_absorbing_equals_reference(
    x: F32, chunk: int, loss_scale: float, clear: bool, seed: int, largest: float
) -> None:
    check_absorb(x, chunk, seed, loss_scale, clear, largest)


@on_every_backend
@settings(max_examples=12)
@given(gradients(sizes=LONG), st.sampled_from((64, 256, 1024, 3001, 8192, 9000)), st.booleans())
def test_absorbing_of_more_than_one_iteration_equals_reference(
    x: F32, chunk: int, clear: bool
) -> None:
    check_absorb(x, chunk, 3, 3.0, clear)


@on_every_backend
@pytest.mark.parametrize("chunk", [256, 300])
def test_absorbing_of_more_tiles_than_warps_are_started_equals_reference(chunk: int) -> None:
    x = np.random.default_rng(0).standard_normal(140_001).astype(np.float32)
    check_absorb(x, chunk, 1, 3.0, True)


@given(gradients(specials=(), magnitudes=(0.0, 1e-40, 1.0, 1e30)), chunk_sizes, st.integers(0, 99))
def test_norms_are_those_of_the_chunks(x: F32, chunk: int, seed: int) -> None:
    residual, norms = residual_for(x, seed), norms_for(x, chunk)
    assert residual is not None
    absorb_chunks(x.copy(), residual, norms, chunk=chunk)
    exact = residual.astype(np.float64) ** 2
    due = [exact[low : low + chunk].sum() for low in range(0, x.size, chunk)]
    np.testing.assert_allclose(norms, due, rtol=1e-12, atol=0)


def check_take(
    norms: F32, n: int, chunk: int, k: int, hold: bool, **how: Any
) -> tuple[F32, F32, Array, F32]:
    """Return the residual before and after it, which chunks are taken, and their values."""
    before = np.random.default_rng(n).standard_normal(n).astype(np.float32)

    def run(kernels: Any) -> list[Array]:
        residual, chosen = before.copy(), poisoned(k, np.uint32)
        values = poisoned(k * chunk, np.float32)
        kernels.take_largest_chunks(norms, residual, chosen, values, chunk=chunk, hold=hold)
        return [residual, chosen, values]

    residual, chosen, values = alike("chunks", run, **how)
    return before, residual, chosen, values


@on_every_backend
@given(
    st.sampled_from((0, 1, 63, 64, 65, 1000, 4097)),
    st.sampled_from((1, 7, 64, 100, 1024, 2049)),
    st.sampled_from((None, None, np.nan, -np.nan, np.inf)),
    st.booleans(),
    st.data(),
)
def test_taking_equals_reference_and_adding_undoes_it(
    n: int, chunk: int, bad: float | None, hold: bool, data: st.DataObject
) -> None:
    number, seed = -(-n // chunk), data.draw(st.integers(0, 99))
    norms = np.random.default_rng(seed).integers(0, 9, number).astype(np.float32)
    if number and bad is not None:
        norms[data.draw(st.integers(0, number - 1))] = bad
    k = data.draw(st.integers(0, number))
    before, residual, chosen, values = check_take(norms, n, chunk, k, hold)
    if np.isfinite(norms).all():
        add_chunks(values, chosen, residual, chunk=chunk)
        assert (residual == before).all()
    else:
        assert same_bits(residual, before)
        assert not values.any()
        assert (chosen == NO_CHUNK).all()


def awkward_norms(kind: str, size: int) -> F32:
    x = np.random.default_rng(5).standard_normal(size)
    bits = 0x3F800000 + np.arange(size, dtype=np.uint32) * 7919 % 1024
    made = {
        "squares": x**2,
        "equal": np.full(size, 2.5),
        "few values": np.abs(np.round(x)),
        "zeros of both signs": np.where(x > 0, 0.0, -0.0),
        "denormal": np.abs(x) * 1e-42,
        "the largest": np.where(x > 0, np.finfo(np.float32).max, 1.0),
        "all bits differ": np.abs(x) * 10.0 ** (x * 9),
    }
    if kind == "last bits":
        return bits.view(np.float32)
    return made[kind].astype(np.float32)


@on_every_backend
@pytest.mark.parametrize("size", [255, 256, 1031, 10_007])
@pytest.mark.parametrize(
    "kind",
    [
        "squares",
        "equal",
        "few values",
        "zeros of both signs",
        "denormal",
        "the largest",
        "all bits differ",
        "last bits",
    ],
)
def test_the_same_chunks_are_chosen_whatever_the_norms(kind: str, size: int) -> None:
    norms = awkward_norms(kind, size)
    for k in (1, size // 3, size - 1, size):
        check_take(norms, size, 1, k, False)


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

    def absorbed() -> list[Array]:
        left, norms = residual.copy(), np.empty(-(-x.size // 192))
        absorb_chunks(x, left, norms, chunk=192)
        return [left, norms]

    alike_in_threads(absorbed)


@on_every_backend
@given(
    st.sampled_from((1, 63, 64, 65, 1000, 4097)),
    st.sampled_from((1, 7, 64, 100, 1024, 2049)),
    st.sampled_from((1.0, -0.3, 1e38)),
    st.integers(0, 999),
    st.sampled_from((None, 0, 1, 2**31)),
    st.booleans(),
)
def test_adding_equals_reference(
    n: int, chunk: int, weight: float, seed: int, beyond: int | None, or_nan: bool
) -> None:
    random, number = np.random.default_rng(seed), -(-n // chunk)
    chosen = np.sort(random.permutation(number)[: random.integers(0, number + 1)])
    chosen = chosen.astype(np.uint32)
    if beyond is not None and chosen.size:
        chosen[random.integers(0, chosen.size)] = number + beyond
    values = random.integers(0, 2**32, chosen.size * chunk, dtype=np.uint32).view(np.float32)
    before = random.standard_normal(n).astype(np.float32)

    def run(kernels: Any) -> list[F32]:
        out, options = before.copy(), {"chunk": chunk, "weight": weight, "or_nan": or_nan}
        kernels.add_existing_chunks(values, chosen, out, **options)
        return [out]

    alike("chunks", run)


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
        with reference():
            add_existing_chunks(values, chosen, specified, **options)
        assert ours.tobytes() == due.tobytes()
        assert specified.tobytes() == due.tobytes()


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("chunk", [60, 256, 1100])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    chunk: int, shift: int
) -> None:
    n, k = 8501, 2
    number, random = -(-n // chunk), np.random.default_rng(chunk)
    given_x, left = (random.standard_normal(n).astype(np.float32) for _ in range(2))
    largest = odd(np.abs(random.standard_normal(number)).astype(np.float32), shift)[1]

    def run(kernels: Any) -> list[Array]:
        (all_x, x), (all_left, residual) = odd(given_x, shift), odd(left, shift)
        all_values, values = odd(poisoned(k * chunk, np.float32), shift)
        all_norms, norms = odd(poisoned(number, np.float64), shift)
        all_chosen, chosen = odd(poisoned(k, np.uint32), shift)
        kernels.absorb_chunks(x, residual, norms, chunk=chunk, loss_scale=3.0, clear=True)
        kernels.take_largest_chunks(largest, residual, chosen, values, chunk=chunk)
        kernels.add_existing_chunks(values, chosen, x, chunk=chunk, weight=0.3)
        return [all_x, all_left, all_values, all_norms, all_chosen]

    alike("chunks", run)


NUMBERS = ([5, 10], [5, 11], [5, 2**31], [5, NO_CHUNK], [NO_CHUNK, NO_CHUNK])


@on_emulated_cuda
@pytest.mark.parametrize("missing", ["skip", "nan", "refuse"])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_nothing_beside_an_array_is_written_whatever_the_numbers(
    numbers: list[int], missing: Missing
) -> None:
    whole = np.zeros(3 * 2500, np.float32)  # of whose middle part number 10 would be
    out, due = whole[2501:4999], whole.copy()
    chosen, values = np.array(numbers, np.uint32), np.ones(2 * 256, np.float32)
    answer = np.zeros(1, np.uint64)
    if missing == "nan":
        due[2501:4999] = np.nan
    elif 5 in numbers:
        due[2501 + 5 * 256 :][:256] = 1
    arrays = on_device(values), on_device(chosen), on_device(out)
    with answers_later(lambda: on_device(answer)):
        add_chunks(*arrays, chunk=256, missing=missing)
    assert whole.tobytes() == due.tobytes()
    assert answer[0] == (missing == "refuse")


@on_emulated_cuda
def test_numbers_that_no_chunk_has_are_refused_before_anything_is_written() -> None:
    out, values = np.zeros(2500, np.float32), on_device(np.ones(512, np.float32))
    with pytest.raises(ValueError, match="below 10"):
        add_chunks(values, on_device(np.array([5, 10], np.uint32)), on_device(out), chunk=256)
    assert not out.any()


@on_emulated_cuda
@pytest.mark.parametrize("largest", [9.0, np.nan])
def test_what_take_left_is_put_back_and_no_one_waits(largest: float) -> None:
    norms, residual = np.array([1, largest, 4], np.float32), np.arange(1, 10, dtype=np.float32)
    before, out = residual.copy(), np.zeros(9, np.float32)
    chosen, values = poisoned(1, np.uint32), poisoned(4, np.float32)
    with mock.patch.object(Emulated, "read") as read:
        arrays = on_device(values), on_device(chosen)
        take_largest_chunks(on_device(norms), on_device(residual), *arrays[::-1], chunk=4)
        taken = residual.copy()
        add_chunks(*arrays, on_device(out), chunk=4, missing="nan")
        add_chunks(*arrays, on_device(residual), chunk=4, missing="skip")
    read.assert_not_called()
    assert same_bits(residual, before)
    if np.isnan(largest):
        assert chosen[0] == NO_CHUNK
        assert same_bits(taken, before)
        assert np.isnan(out).all()
    else:
        assert same_bits(out, before - taken)
        assert out.any()


@on_every_backend
def test_the_order_of_threads_does_not_matter() -> None:
    x = np.random.default_rng(0).standard_normal(20_011).astype(np.float32)
    for chunk in (100, 2000, 9000):
        check_absorb(x, chunk, 0, 1.0, True, orders=range(4))
    check_take(awkward_norms("few values", 3001), 3001 * 3, 3, 700, False, orders=range(4))


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
