"""The CUDA kernels for residuals, run on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from compressa.kernels.cuda import check_available, feedback
from compressa.kernels.cuda._device import CTA, running_on
from compressa.kernels.cuda._work import ask
from compressa.kernels.reference import feedback as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, gradients, poisoned, residual_for, same_bits

pytestmark = on_emulated_cuda

DTYPES = (np.float16, np.uint16, np.float32, np.float64)
MANTISSA_BITS = {np.float16: 10, np.uint16: 7, np.float32: 23, np.float64: 52}


@given(gradients(), st.integers(0, 99), st.sampled_from(SCALES), st.integers(0, 3))
def test_absorb_equals_reference(x: F32, seed: int, scale: float, shift: int) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    before, part = residual.copy(), slice(shift, shift + x.size)
    ours, due = (poisoned(x.size + 8, np.float32) for _ in range(2))
    ours[part], due[part] = x, x
    kept, due_kept = (poisoned(x.size + 8, np.float32) for _ in range(2))
    feedback.absorb_residual(ours[part], residual, kept[part], scale)
    with np.errstate(all="ignore"):
        reference.absorb_residual(due[part], residual, due_kept[part], scale)
    assert same_bits(ours, due)
    assert same_bits(kept, due_kept)
    assert same_bits(residual, before)


def bits_of(dtype: type, n: int) -> npt.NDArray[np.unsignedinteger]:
    """The largest finite number, of either sign, n times."""
    size = 8 * np.dtype(dtype).itemsize
    largest = (1 << size - 1) - (1 << MANTISSA_BITS[dtype]) - 1
    bits = np.full(n, largest, f"u{size // 8}")
    bits[1::2] |= bits.dtype.type(1 << size - 1)
    return bits


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    n=st.sampled_from((0, 1, 2, 3, 7, 8, 9, 31, 33, 257, 1031)),
    shift=st.integers(0, 8),
    bad=st.none() | st.tuples(st.floats(0, 1, exclude_max=True), st.booleans(), st.booleans()),
)
def test_one_element_decides_whether_all_are_finite(
    dtype: type, n: int, shift: int, bad: tuple[float, bool, bool] | None
) -> None:
    size = 8 * np.dtype(dtype).itemsize
    infinity = (1 << size - 1) - (1 << MANTISSA_BITS[dtype])
    whole = np.full(n + 16, infinity, f"u{size // 8}")  # around the elements, which does not count
    whole[shift : shift + n] = bits_of(dtype, n)
    if bad and n:
        place, nan, negative = int(bad[0] * n), bad[1], bad[2]
        whole[shift + place] = infinity + nan + (negative << size - 1)
    x = whole.view(dtype)[shift : shift + n]
    assert feedback.all_finite(x) == reference.all_finite(x) == (not (bad and n))


@pytest.mark.parametrize("seed", range(5))
def test_one_among_many_is_seen_by_whoever_looks_first(seed: int) -> None:
    x = np.zeros((100, 1001), np.float32)
    with running_on(Emulated(seed)):
        assert feedback.all_finite(x)
        x[-1 - 7 * seed, -1] = np.inf
        assert not feedback.all_finite(x)
        x[:] = np.nan
        assert not feedback.all_finite(x)


def test_threads_take_more_than_one_turn() -> None:
    x, residual = np.random.default_rng(0).standard_normal((2, 40_001)).astype(np.float32)
    ours, due, kept, due_kept = x.copy(), x.copy(), x.copy(), x.copy()
    feedback.absorb_residual(ours, residual, kept, 3.0)
    reference.absorb_residual(due, residual, due_kept, 3.0)
    assert same_bits(ours, due)
    assert same_bits(kept, due_kept)


def test_the_smallest_numbers_are_kept_and_where_they_are_not_that_is_seen() -> None:
    check_available()
    small = np.float32(1e-45)
    assert not ask("feedback", "find_flushed", 1, CTA, small, np.float32(1))
    assert ask("feedback", "find_flushed", 1, CTA, small, np.float32(0))  # a product of zero
