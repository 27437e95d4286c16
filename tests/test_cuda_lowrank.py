"""The CUDA kernels of low-rank arithmetic, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import lowrank as public
from compressa.kernels.cuda import lowrank
from compressa.kernels.cuda._device import running_on
from compressa.kernels.lowrank import ALIVE, SPOILED, ZERO
from compressa.kernels.philox import Noise
from compressa.kernels.reference import lowrank as reference
from emulated_cuda import Emulated, on_device, on_emulated_cuda
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, poisoned, same_bits

pytestmark = on_emulated_cuda

ROWS = (0, 1, 2, 5, 16, 17, 33, 255, 256, 257, 300)
COLUMNS = (0, 1, 3, 4, 7, 16, 17, 60, 64, 257)
SPECIALS = (np.nan, np.inf, -np.inf, -0.0, 1e-45, -1e-39, 3e38)


class Guarded:
    """A matrix at an odd address, with something on either side that must stay.

    Attributes:
        matrix: The matrix.
    """

    def __init__(self, values: F32, shift: int) -> None:
        self._whole = poisoned(values.size + 8, np.float32)
        part = slice(shift, shift + values.size)
        self.matrix: F32 = self._whole[part].reshape(values.shape)
        self.matrix[...] = values
        self._beside = np.delete(self._whole, part)
        self._part = part

    def is_safe(self) -> bool:
        """Whether nothing beside it has changed."""
        return same_bits(np.delete(self._whole, self._part), self._beside)


def values_of(random: np.random.Generator, shape: tuple[int, int], specials: int) -> F32:
    """Values of very different magnitudes, some of them zeros, and so many special ones."""
    x = random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape)
    x[random.random(shape) < 0.1] = 0.0
    for value in random.choice(SPECIALS, specials) if x.size else ():
        x.reshape(-1)[random.integers(x.size)] = value
    return x.astype(np.float32)


def check_factors(
    name: str, shape: tuple[int, int], r: int, seed: int, kept: bool, scale: float, shift: int
) -> None:
    random, length = np.random.default_rng(seed), shape[name == "left_factor"]
    x, left = (Guarded(values_of(random, shape, seed % 3), shift) for _ in range(2))
    factor = Guarded(values_of(random, (r, length), 0), shift)
    out = Guarded(poisoned((r, sum(shape) - length), np.float32), shift)
    due_x, due = x.matrix.copy(), poisoned(out.matrix.shape, np.float32)
    given: dict[str, Any] = {"residual": left.matrix if kept else None, "scale": scale}
    if not kept:
        x.matrix.flags.writeable = False
    getattr(lowrank, name)(x.matrix, factor.matrix, out.matrix, **given)
    with np.errstate(all="ignore"):
        getattr(reference, name)(due_x, factor.matrix, due, **given)
    assert same_bits(x.matrix, due_x)
    assert same_bits(out.matrix, due)
    assert all(one.is_safe() for one in (x, left, factor, out))


shapes = st.tuples(st.sampled_from(ROWS), st.sampled_from(COLUMNS))
ranks, seeds, shifts = st.integers(1, 9), st.integers(0, 999), st.integers(0, 3)
factors = st.sampled_from(("left_factor", "right_factor"))


@given(factors, shapes, ranks, seeds, st.booleans(), st.sampled_from(SCALES), shifts)
@limits(max_examples=60)
def test_factors_equal_reference(
    name: str, shape: tuple[int, int], r: int, seed: int, kept: bool, scale: float, shift: int
) -> None:
    check_factors(name, shape, r, seed, kept, scale, shift)


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


@pytest.mark.parametrize("name", ["left_factor", "right_factor"])
def test_wide_kernels_take_addresses_that_are_not(name: str) -> None:
    for shift in (1, 2, 3):
        check_factors(name, (520, 260), 3, 0, True, 3.0, shift)


def product_operands(
    shape: tuple[int, int], r: int, seed: int, shift: int
) -> tuple[Guarded, Guarded]:
    random = np.random.default_rng(seed)
    p, q = (values_of(random, (r, length), seed % 2) for length in shape)
    return Guarded(p, shift), Guarded(q, shift)


verdicts = st.sampled_from((None, ALIVE, ZERO, SPOILED))


def verdicts_of(r: int, last: int | None) -> Any:
    """Verdicts of which the last one is given; none for none."""
    return None if last is None else np.array([ALIVE] * (r - 1) + [last], np.uint32)


@given(shapes, ranks, seeds, shifts, verdicts)
@limits(max_examples=40)
def test_product_equals_reference(
    shape: tuple[int, int], r: int, seed: int, shift: int, last: int | None
) -> None:
    (p, q), out = product_operands(shape, r, seed, shift), Guarded(poisoned(shape, "f4"), shift)
    due, judged = poisoned(shape, np.float32), verdicts_of(r, last)
    lowrank.low_rank_product(p.matrix, q.matrix, out.matrix, judged)
    with np.errstate(all="ignore"):
        reference.low_rank_product(p.matrix, q.matrix, due, judged)
    assert same_bits(out.matrix, due)
    assert all(one.is_safe() for one in (p, q, out))


def check_split(
    shape: tuple[int, int],
    r: int,
    seed: int,
    scale: float,
    held: bool,
    shift: int,
    last: int | None = None,
) -> None:
    (p, q), random = product_operands(shape, r, seed, shift), np.random.default_rng(seed + 1)
    m, left = (Guarded(values_of(random, shape, seed % 3), shift) for _ in range(2))
    if not held:
        left.matrix[...] = poisoned(shape, np.float32)
    due_m, due_left = m.matrix.copy(), left.matrix.copy()
    more: dict[str, Any] = {"held": held, "verdicts": verdicts_of(r, last)}
    if seed % 2:
        more["out"] = tuple(part.matrix for part in product_operands(shape, r, seed + 9, shift))
    lowrank.split_low_rank(m.matrix, p.matrix, q.matrix, left.matrix, scale, **more)
    with np.errstate(all="ignore"):
        reference.split_low_rank(due_m, p.matrix, q.matrix, due_left, scale, **more)
    assert same_bits(m.matrix, due_m)
    assert same_bits(left.matrix, due_left)
    assert all(one.is_safe() for one in (p, q, m, left))


@given(shapes, ranks, seeds, st.sampled_from(SCALES), st.booleans(), shifts, verdicts)
@limits(max_examples=40)
def test_split_equals_reference(
    shape: tuple[int, int],
    r: int,
    seed: int,
    scale: float,
    held: bool,
    shift: int,
    last: int | None,
) -> None:
    check_split(shape, r, seed, scale, held, shift, last)


@pytest.mark.parametrize(("shape", "shift"), [((270, 256), 0), ((270, 256), 1), ((200, 333), 0)])
def test_products_of_many_turns(shape: tuple[int, int], shift: int) -> None:
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


kinds = st.sampled_from(
    ("plain", "parallel", "nearly parallel", "zero row", "NaN", "Inf", "huge", "tiny")
)


def check_orthonormalize(p: F32, shift: int) -> None:
    ours, due = Guarded(p, shift), p.copy()
    lowrank.orthonormalize(ours.matrix)
    with np.errstate(all="ignore"):
        reference.orthonormalize(due)
    assert same_bits(ours.matrix, due)
    assert ours.is_safe()


@given(kinds, st.integers(0, 6), st.sampled_from((0, 1, 15, 17, 300)), seeds, shifts)
@limits(max_examples=60)
def test_orthonormalize_equals_reference(kind: str, r: int, n: int, seed: int, shift: int) -> None:
    check_orthonormalize(thin(kind, r, n, seed), shift)


# By one block of threads, and by launches for each part of it.
@pytest.mark.parametrize(("r", "n"), [(4, 2049), (1, 49153), (4, 5000), (3, 8193), (40, 70)])
def test_rows_of_many_blocks_and_many_rows(r: int, n: int) -> None:
    for seed in range(3):
        with running_on(Emulated(seed)):
            check_orthonormalize(thin("nearly parallel", r, n, seed), 1)


@pytest.mark.parametrize("kind", ["parallel", "zero row", "NaN", "Inf", "huge", "tiny"])
def test_special_rows_of_many_blocks(kind: str) -> None:
    check_orthonormalize(thin(kind, 5, 4000, 0), 2)


NOISE = Noise(seed=7, stream=0x5051, step=11, parameter=3)


def check_keep(factor: F32, shift: int, start: int = 0) -> None:
    ours, kept = Guarded(factor, shift), Guarded(poisoned(factor.shape, np.float32), shift)
    due, noise = poisoned(factor.shape, np.float32), NOISE._replace(start=start)
    found, judged = (poisoned(factor.shape[:1], np.uint32) for _ in range(2))
    lowrank.judge_rows(ours.matrix, found)
    reference.judge_rows(factor, judged)
    assert same_bits(found, judged)
    lowrank.keep_directions(ours.matrix, kept.matrix, found, noise)
    reference.keep_directions(factor, due, judged, noise)
    assert same_bits(kept.matrix, due)
    assert kept.is_safe()
    lowrank.keep_directions(ours.matrix, ours.matrix, found, noise)
    assert SPOILED in judged or same_bits(ours.matrix, due)
    assert ours.is_safe()


starts = st.sampled_from((0, 1, 2**40 + 3))


@given(kinds, st.integers(0, 5), st.sampled_from((0, 1, 15, 300, 1025)), seeds, shifts, starts)
@limits(max_examples=40)
def test_verdicts_and_kept_directions_equal_reference(
    kind: str, r: int, n: int, seed: int, shift: int, start: int
) -> None:
    check_keep(thin(kind, r, n, seed), shift, start)


def test_a_direction_lives_by_one_element_but_not_by_minus_zero() -> None:
    for seed in range(3):
        with running_on(Emulated(seed)):
            q = np.full((20, 4501), -0.0, np.float32)
            q[::2, 4500] = (1e-45, -1e-45, 1.0, -1.0, 5.0) * 2
            check_keep(q, 0)
            q[3, 4499] = np.inf
            check_keep(q, 1)


def test_all_of_it_takes_arrays_of_a_gpu() -> None:
    """By the public functions, whose checks look at shapes."""
    random, made = np.random.default_rng(5), []
    given = [values_of(random, shape, 0) for shape in ((70, 90), (70, 90), (3, 70), (3, 90))]
    for place in (on_device, lambda array: array):
        arrays = [array.copy() for array in given]
        arrays += [poisoned(given[3].shape, np.float32), poisoned(3, np.uint32)]
        x, residual, p, q, kept, verdicts = (place(array) for array in arrays)
        public.left_factor(x, q, p, residual=residual, scale=4.0)
        public.orthonormalize(p)
        public.right_factor(x, p, q)
        public.judge_rows(q, verdicts)
        public.split_low_rank(x, p, q, residual, 4.0, verdicts=verdicts)
        public.keep_directions(q, kept, verdicts, NOISE)
        public.low_rank_product(p, q, residual, verdicts)
        made.append(arrays)
    assert all(same_bits(one, other) for one, other in zip(*made, strict=True))


def test_shapes_of_arrays_of_a_gpu_are_checked() -> None:
    x, q, p = (on_device(np.zeros(shape, np.float32)) for shape in ((4, 6), (2, 5), (2, 4)))
    with pytest.raises(ValueError, match=r"q must have shape \(2, 6\), not \(2, 5\)"):
        public.left_factor(x, q, p)
    with pytest.raises(ValueError, match="two dimensions"):
        public.left_factor(x.reshape(24), q, p)
