from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, odd, on_every_backend
from compressa.kernels import lowrank as public
from compressa.kernels.lowrank import (
    ALIVE,
    SPOILED,
    ZERO,
    judge_rows,
    keep_directions,
    left_factor,
    low_rank_product,
    orthonormalize,
    right_factor,
    split_low_rank,
)
from compressa.kernels.philox import Noise, random_words
from emulated_cuda import on_device, on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, poisoned, same_bits

ROWS = (0, 1, 2, 5, 15, 16, 17, 33, 40, 255, 256, 257, 300)
COLUMNS = (0, 1, 3, 4, 7, 16, 17, 60, 64, 65, 257)
SPECIALS = (np.nan, np.inf, -np.inf, -0.0, 1e-45, -1e-39, 3e38)
NOISE = Noise(seed=3, stream=2**40, step=-1, parameter=5)
shapes = st.tuples(st.sampled_from(ROWS), st.sampled_from(COLUMNS))
ranks, seeds, shifts = st.integers(1, 9), st.integers(0, 999), st.integers(0, 3)
verdicts = st.sampled_from((None, ALIVE, ZERO, SPOILED))
kinds = st.sampled_from(
    ("plain", "parallel", "nearly parallel", "zero row", "NaN", "Inf", "huge", "tiny")
)


def matrix(values: F32, shift: int) -> tuple[F32, F32]:
    """A copy at an odd address: all, with what is around it; and the matrix."""
    whole, part = odd(values.reshape(-1), shift)
    return whole, part.reshape(values.shape)


def values_of(random: np.random.Generator, shape: tuple[int, int], specials: int) -> F32:
    """Values of very different magnitudes, some of them zeros, and so many special ones."""
    x = random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape)
    x[random.random(shape) < 0.1] = 0.0
    for value in random.choice(SPECIALS, specials) if x.size else ():
        x.reshape(-1)[random.integers(x.size)] = value
    return x.astype(np.float32)


def check_factors(
    name: str, shape: tuple[int, int], r: int, seed: int, kept: bool, loss_scale: float, shift: int
) -> None:
    random, length = np.random.default_rng(seed), shape[name == "left_factor"]
    given_x, left = (values_of(random, shape, seed % 3) for _ in range(2))
    factor = matrix(values_of(random, (r, length), 0), shift)[1]
    due_shape = (r, sum(shape) - length)

    def run(kernels: Any) -> list[F32]:
        (all_x, x), (all_left, residual) = matrix(given_x, shift), matrix(left, shift)
        all_out, out = matrix(poisoned(due_shape, np.float32), shift)
        options: dict[str, Any] = {"residual": residual if kept else None, "loss_scale": loss_scale}
        getattr(kernels, name)(x, factor, out, **options)
        return [all_x, all_left, all_out]

    alike("lowrank", run)


@on_every_backend
@pytest.mark.parametrize("name", ["left_factor", "right_factor"])
@given(shapes, ranks, seeds, st.booleans(), st.sampled_from(SCALES), shifts)
def test_factors_equal_reference(
    name: str, shape: tuple[int, int], r: int, seed: int, kept: bool, loss_scale: float, shift: int
) -> None:
    check_factors(name, shape, r, seed, kept, loss_scale, shift)


@on_every_backend
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("r", [1, 2, 4, 8, 19])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("left_factor", (300, 64)),
        ("left_factor", (131, 4132)),
        ("left_factor", (37, 2049)),
        ("right_factor", (300, 1040)),
        ("right_factor", (1030, 516)),
        ("right_factor", (530, 261)),
    ],
)
def test_factors_of_whole_blocks_panels_and_many_vectors(
    name: str, shape: tuple[int, int], r: int, kept: bool
) -> None:
    check_factors(name, shape, r, r, kept, 3.0, shift=0)


@on_every_backend
@pytest.mark.parametrize("name", ["left_factor", "right_factor"])
def test_wide_kernels_take_addresses_that_are_not(name: str) -> None:
    for shift in (1, 2, 3):
        check_factors(name, (520, 260), 3, 0, True, 3.0, shift)


def operands(shape: tuple[int, int], r: int, seed: int, shift: int = 0) -> tuple[F32, F32]:
    """Two factors, in memory of their own."""
    random = np.random.default_rng(seed)
    p, q = (matrix(values_of(random, (r, length), seed % 2), shift)[1] for length in shape)
    return p, q


def verdicts_of(r: int, last: int | None) -> Any:
    """Verdicts of which the last one is given; none for none."""
    return None if last is None else np.array([ALIVE] * (r - 1) + [last], np.uint32)


@on_every_backend
@given(shapes, ranks, seeds, shifts, verdicts)
def test_product_equals_reference(
    shape: tuple[int, int], r: int, seed: int, shift: int, last: int | None
) -> None:
    (p, q), judged = operands(shape, r, seed, shift), verdicts_of(r, last)

    def run(kernels: Any) -> list[F32]:
        whole, out = matrix(poisoned(shape, np.float32), shift)
        kernels.low_rank_product(p, q, out, judged)
        return [whole]

    alike("lowrank", run)


def check_split(
    shape: tuple[int, int],
    r: int,
    seed: int,
    loss_scale: float,
    held: bool,
    shift: int,
    last: int | None = None,
) -> None:
    (p, q), random = operands(shape, r, seed, shift), np.random.default_rng(seed + 1)
    given_m, left = (values_of(random, shape, seed % 3) for _ in range(2))
    more: dict[str, Any] = {"held": held, "verdicts": verdicts_of(r, last)}
    if seed % 2:
        more["out"] = operands(shape, r, seed + 9, shift)

    def run(kernels: Any) -> list[F32]:
        all_m, m = matrix(given_m, shift)
        all_left, residual = matrix(left if held else poisoned(shape, np.float32), shift)
        kernels.split_low_rank(m, p, q, residual, loss_scale, **more)
        return [all_m, all_left]

    alike("lowrank", run)


@on_every_backend
@given(shapes, ranks, seeds, st.sampled_from(SCALES), st.booleans(), shifts, verdicts)
def test_split_equals_reference(
    shape: tuple[int, int],
    r: int,
    seed: int,
    loss_scale: float,
    held: bool,
    shift: int,
    last: int | None,
) -> None:
    check_split(shape, r, seed, loss_scale, held, shift, last)


@on_every_backend
@pytest.mark.parametrize(("shape", "shift"), [((270, 256), 0), ((270, 256), 1), ((200, 333), 0)])
def test_products_of_many_iterations(shape: tuple[int, int], shift: int) -> None:
    check_split(shape, 5, 3, 0.25, True, shift)


def thin(kind: str, r: int, n: int, seed: int) -> F32:
    p = np.random.default_rng(seed).standard_normal((r, n))
    if not p.size:
        return p.astype(np.float32)
    if kind == "parallel":
        p[:] = p[:1]
    elif kind == "nearly parallel":
        p[:] = p[:1] + 1e-5 * p
    elif kind == "zero row":
        p[r // 2] = 0
    elif kind in ("NaN", "Inf"):
        p[r // 2, n // 2] = float(kind)
    elif kind in ("huge", "tiny"):
        p *= 1e37 if kind == "huge" else 1e-43
    return p.astype(np.float32)


def check_orthonormalize(p: F32, shift: int, **how: Any) -> None:
    def run(kernels: Any) -> list[F32]:
        whole, rows = matrix(p, shift)
        kernels.orthonormalize(rows)
        return [whole]

    alike("lowrank", run, **how)


@on_every_backend
@given(kinds, st.integers(0, 6), st.sampled_from((0, 1, 2, 5, 15, 16, 17, 40, 300)), seeds, shifts)
def test_orthonormalize_equals_reference(kind: str, r: int, n: int, seed: int, shift: int) -> None:
    check_orthonormalize(thin(kind, r, n, seed), shift)


# By one block of threads, and by launches for each part of it.
@on_every_backend
@pytest.mark.parametrize(
    ("r", "n"),
    [(3, 2047), (4, 2049), (1, 49153), (4, 5000), (3, 8193), (40, 70), (20, 300)],
)
def test_rows_of_many_blocks_and_many_rows(r: int, n: int) -> None:
    check_orthonormalize(thin("nearly parallel", r, n, n), 1, orders=range(3))


@on_every_backend
@pytest.mark.parametrize("kind", ["parallel", "zero row", "NaN", "Inf", "huge", "tiny"])
def test_special_rows_of_many_blocks(kind: str) -> None:
    check_orthonormalize(thin(kind, 5, 4000, 0), 2)


def across(p: Array) -> F32:
    """A factor as kernels take it: a vector a row."""
    return np.ascontiguousarray(p.T, dtype=np.float32)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize(("n", "r"), [(1, 1), (4, 4), (50, 3), (1000, 8)])
def test_rows_are_orthonormal_also_when_nearly_dependent(n: int, r: int, spread: float) -> None:
    random = np.random.default_rng(n)
    base = random.standard_normal((n, 1))
    p = across(base + spread * random.standard_normal((n, r)))
    before = p.T.astype(np.float64)
    orthonormalize(p)
    q = p.T.astype(np.float64)
    assert np.abs(q.T @ q - np.eye(r)).max() < 1e-6
    missed = before - q @ (q.T @ before)
    assert np.abs(missed).max() < 1e-5 * np.abs(before).max()  # the span is the same


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 5e-6])
def test_rows_may_depend_on_each_other_one_after_the_other(spread: float) -> None:
    random = np.random.default_rng(1)
    own = random.standard_normal((6, 3000))
    p = own.copy()
    p[1:] = own[:-1] + spread * own[1:]
    given = p.astype(np.float32)
    p = given.copy()
    orthonormalize(p)
    q = p.astype(np.float64)
    assert np.abs(q @ q.T - np.eye(6)).max() < 1e-6
    assert np.abs(given - (given @ q.T) @ q).max() < 1e-6 * np.abs(given).max()


def test_dependent_rows_become_zero() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 200, 1)).astype(np.float32)
    p = across(np.hstack([a, 3 * a, np.zeros_like(a), b, a - 2 * b]))
    orthonormalize(p)
    assert (p.any(axis=1) == [True, False, False, True, False]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_overflow_spreads_over_its_row_and_all_later_ones(bad: float) -> None:
    p = np.random.default_rng(0).standard_normal((3, 20)).astype(np.float32)
    p[1, 4] = bad
    orthonormalize(p)
    assert np.isfinite(p[0]).all()
    assert np.isnan(p[1:]).all()


@pytest.mark.parametrize("held", [False, True])
def test_a_spoiled_factor_spoils_the_product_and_leaves_the_residual(held: bool) -> None:
    p, q = np.ones((2, 30), np.float32), np.ones((2, 40), np.float32)
    m, residual = np.ones((30, 40), np.float32), np.full((30, 40), 3, np.float32)
    verdicts = np.array([ALIVE, SPOILED], np.uint32)
    split_low_rank(m, p, q, residual, 2.0, held=held, verdicts=verdicts)
    assert np.isnan(m).all()
    assert (residual == 3).all()
    low_rank_product(p, q, residual, verdicts)
    assert np.isnan(residual).all()


@pytest.mark.parametrize("shape", [(1030, 600), (300, 2300)])
def test_bits_do_not_depend_on_the_number_of_threads(shape: tuple[int, int]) -> None:
    random, r = np.random.default_rng(3), 5
    x, residual = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
    p, q = (random.standard_normal((r, n)).astype(np.float32) for n in shape)

    def all_of_it() -> list[F32]:
        left, right, m, kept = np.empty_like(p), np.empty_like(q), x.copy(), residual.copy()
        left_factor(m, q, left, residual=kept, loss_scale=2.0)
        right_factor(m, p, right, residual=kept, loss_scale=2.0)
        split_low_rank(m, p, q, kept, 2.0)
        return [left, right, m, kept]

    alike_in_threads(all_of_it)


@pytest.mark.parametrize("shape", [(70, 5000), (5000, 70)])
def test_factors_are_the_products(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(4)
    x, residual = (random.standard_normal(shape) for _ in range(2))
    p, q = (random.standard_normal((3, n)) for n in shape)
    m, single = x + 2.0 * residual, [a.astype(np.float32) for a in (x, residual, p, q)]
    left, right = np.empty_like(single[2]), np.empty_like(single[3])
    left_factor(single[0], single[3], left, residual=single[1], loss_scale=2.0)
    right_factor(single[0], single[2], right)
    np.testing.assert_allclose(single[0], m, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(left, q @ m.T, atol=3e-4)
    np.testing.assert_allclose(right, p @ m, atol=3e-4)


def check_keep(factor: F32, shift: int, start: int = 0, **how: Any) -> Array:
    """Verdicts, what is kept, and what is kept in the factor's own place; return the verdicts."""
    noise = NOISE._replace(start=start)

    def run(kernels: Any) -> list[Array]:
        (own, rows), judged = matrix(factor, shift), poisoned(factor.shape[:1], np.uint32)
        whole, kept = matrix(poisoned(factor.shape, np.float32), shift)
        kernels.judge_rows(rows, judged)
        kernels.keep_directions(rows, kept, judged, noise)
        kernels.keep_directions(rows, rows, judged, noise)
        assert SPOILED in judged or same_bits(kept, rows)
        return [judged, own, whole]

    found: Array = alike("lowrank", run, **how)[0]
    return found


@on_every_backend
@given(
    kinds,
    st.integers(0, 5),
    st.sampled_from((0, 1, 2, 5, 15, 16, 17, 40, 300, 1025)),
    seeds,
    shifts,
    st.sampled_from((0, 1, 2**40 + 3)),
)
def test_verdicts_and_kept_directions_equal_reference(
    kind: str, r: int, n: int, seed: int, shift: int, start: int
) -> None:
    check_keep(thin(kind, r, n, seed), shift, start)


@on_every_backend
def test_a_row_lives_by_one_element_and_minus_zero_is_none() -> None:
    q = np.full((20, 4501), -0.0, np.float32)
    q[::2, 4500] = (1e-45, -1e-45, 1.0, -1.0, 5.0) * 2
    assert check_keep(q, 0, orders=range(3)).tolist() == [ALIVE, ZERO] * 10
    q[3, 4499], q[5, 4500], q[7, 0] = np.inf, np.nan, -np.inf
    found = check_keep(q, 1, orders=range(3))
    assert np.flatnonzero(found == SPOILED).tolist() == [3, 5, 7]


def test_directions_that_vanished_are_drawn_anew_by_the_numbers_of_their_indices() -> None:
    factor = np.random.default_rng(0).standard_normal((3, 17)).astype(np.float32)
    factor[1] = 0
    kept, verdicts = poisoned(factor.shape, np.float32), poisoned(3, np.uint32)
    judge_rows(factor, verdicts)
    keep_directions(factor, kept, verdicts, NOISE)
    words = np.empty(17, np.uint32)
    random_words(words, **NOISE._replace(start=17)._asdict())
    due = (words.astype(np.float64) - 2**31) / 2**31
    assert same_bits(kept[::2], factor[::2])
    assert same_bits(kept[1], due.astype(np.float32))
    keep_directions(factor, factor, verdicts, NOISE)
    assert same_bits(kept, factor)


def test_no_direction_of_a_spoiled_factor_is_kept() -> None:
    factor = np.ones((3, 17), np.float32)
    kept = poisoned(factor.shape, np.float32)
    before = kept.copy()
    keep_directions(factor, kept, np.array([ALIVE, ZERO, SPOILED], np.uint32), NOISE)
    assert same_bits(kept, before)


def test_split_conserves_the_matrix() -> None:
    random = np.random.default_rng(2)
    p, q, m = (random.standard_normal(s).astype(np.float32) for s in ((2, 30), (2, 40), (30, 40)))
    product, residual = m.copy(), poisoned(m.shape, np.float32)
    split_low_rank(product, p, q, residual, 64.0)
    np.testing.assert_allclose(product, p.T @ q, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(product + 64 * residual.astype(np.float64), m, atol=2e-6)


def test_a_residual_that_is_held_back_stays_and_takes_in_what_the_gradient_lacks() -> None:
    random = np.random.default_rng(2)
    p, q, m = (random.standard_normal(s).astype(np.float32) for s in ((2, 30), (2, 40), (30, 40)))
    before, product = random.standard_normal(m.shape).astype(np.float32), m.copy()
    residual = before.copy()
    split_low_rank(product, p, q, residual, 4.0, held=True)
    np.testing.assert_allclose(product + 4.0 * (residual - before), m, atol=2e-5)


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [((2, 3), (3, 4), "q must"), ((0, 3), (0, 4), "one row"), ((3,), (1, 4), "two dimensions")],
)
def test_refuses_shapes_that_do_not_fit(
    p: tuple[int, ...], q: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        low_rank_product(
            np.zeros(p, np.float32), np.zeros(q, np.float32), np.zeros((3, 4), np.float32)
        )


@on_emulated_cuda
def test_all_of_it_takes_arrays_of_a_gpu() -> None:
    """By the public functions, whose checks look at shapes."""
    random, made = np.random.default_rng(5), []
    given = [values_of(random, shape, 0) for shape in ((70, 90), (70, 90), (3, 70), (3, 90))]
    for moved in (on_device, lambda array: array):
        arrays = [array.copy() for array in given]
        arrays += [poisoned(given[3].shape, np.float32), poisoned(3, np.uint32)]
        x, residual, p, q, kept, verdicts = (moved(array) for array in arrays)
        public.left_factor(x, q, p, residual=residual, loss_scale=4.0)
        public.orthonormalize(p)
        public.right_factor(x, p, q)
        public.judge_rows(q, verdicts)
        public.split_low_rank(x, p, q, residual, 4.0, verdicts=verdicts)
        public.keep_directions(q, kept, verdicts, NOISE)
        public.low_rank_product(p, q, residual, verdicts)
        made.append(arrays)
    assert all(same_bits(one, other) for one, other in zip(*made, strict=True))


@on_emulated_cuda
def test_shapes_of_arrays_of_a_gpu_are_checked() -> None:
    x, q, p = (on_device(np.zeros(shape, np.float32)) for shape in ((4, 6), (2, 5), (2, 4)))
    with pytest.raises(ValueError, match=r"q must have shape \(2, 6\), not \(2, 5\)"):
        public.left_factor(x, q, p)
    with pytest.raises(ValueError, match="two dimensions"):
        public.left_factor(x.reshape(24), q, p)
