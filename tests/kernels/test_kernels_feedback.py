"""Values that are not encoded take up their residual, and forget none of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from alike import Array, alike, odd, on_every_backend
from compressa.kernels import absorb_residual, all_finite
from compressa.kernels.cuda import check_available
from compressa.kernels.cuda._device import CTA
from compressa.kernels.cuda._later import ask
from emulated_cuda import on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, FINITE, SCALES, gradients, poisoned, residual_for, same_bits

DTYPES = (np.float16, np.uint16, np.float32, np.float64)
MANTISSA_BITS = {np.float16: 10, np.uint16: 7, np.float32: 23, np.float64: 52}


def check_absorb(x: F32, residual: F32, loss_scale: float, shift: int = 0) -> None:
    def run(kernels: Any) -> list[Array]:
        (whole, values), (left, kept) = odd(x, shift), odd(poisoned(x.size, np.float32), shift)
        kernels.absorb_residual(values, residual, kept, loss_scale)
        return [whole, left]

    whole, left = alike("feedback", run, reads=[residual])
    inner = slice(shift, shift + x.size)
    spoiled = ~np.isfinite(whole[inner])  # what overflowed leaves the residual as it was
    assert same_bits(left[inner][spoiled], residual[spoiled])


@on_every_backend
@given(gradients(), st.integers(0, 99), st.sampled_from(SCALES), st.integers(0, 3))
def test_absorb_equals_reference(x: F32, seed: int, loss_scale: float, shift: int) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    check_absorb(x, residual, loss_scale, shift)


@on_every_backend
def test_threads_take_more_than_one_iteration() -> None:
    x, residual = np.random.default_rng(0).standard_normal((2, 40_001)).astype(np.float32)
    check_absorb(x, residual, 3.0)


def finite(x: Array, **how: Any) -> bool:
    """Whether all is, as all backends say."""
    return bool(alike("feedback", lambda k: [bool(k.all_finite(x))], reads=[x], **how)[0])


@given(gradients(specials=FINITE), st.sampled_from((np.nan, np.inf, -np.inf)), st.data())
def test_one_element_decides_whether_all_are_finite(
    x: F32, bad: float, data: st.DataObject
) -> None:
    assert all_finite(x)
    if x.size:
        spoiled = x.copy()
        spoiled[data.draw(st.integers(0, x.size - 1))] = bad
        assert not all_finite(spoiled)


def bits_of(dtype: type, n: int) -> npt.NDArray[np.unsignedinteger]:
    """The largest finite number, of either sign, n times."""
    size = 8 * np.dtype(dtype).itemsize
    largest = (1 << size - 1) - (1 << MANTISSA_BITS[dtype]) - 1
    bits = np.full(n, largest, f"u{size // 8}")
    bits[1::2] |= bits.dtype.type(1 << size - 1)
    return bits


@on_every_backend
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    n=st.sampled_from((0, 1, 2, 3, 7, 8, 9, 31, 33, 257, 1031)),
    shift=st.integers(0, 8),
    bad=st.none() | st.tuples(st.floats(0, 1, exclude_max=True), st.booleans(), st.booleans()),
)
def test_one_element_of_any_dtype_decides_whether_all_are_finite(
    dtype: type, n: int, shift: int, bad: tuple[float, bool, bool] | None
) -> None:
    size = 8 * np.dtype(dtype).itemsize
    infinity = (1 << size - 1) - (1 << MANTISSA_BITS[dtype])
    whole = np.full(n + 16, infinity, f"u{size // 8}")  # around the elements, which does not count
    whole[shift : shift + n] = bits_of(dtype, n)
    if bad and n:
        index, nan, negative = int(bad[0] * n), bad[1], bad[2]
        whole[shift + index] = infinity + nan + (negative << size - 1)
    x = whole.view(dtype)[shift : shift + n]
    assert finite(x) == (not (bad and n))


@on_every_backend
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_finite_means_the_same_for_every_dtype(dtype: npt.DTypeLike, data: st.DataObject) -> None:
    # The largest number, the infinities, a NaN and any bits.
    size, mantissa = 8 * np.dtype(dtype).itemsize, MANTISSA_BITS[dtype]
    infinity = (1 << size - 1) - (1 << mantissa)
    sign = 1 << size - 1
    edges = st.sampled_from([0, infinity - 1, infinity, infinity + 1, infinity | sign])
    bits = data.draw(st.lists(edges | st.integers(0, (1 << size) - 1), max_size=5))
    finite(np.array(bits, f"uint{size}").view(dtype))


@on_every_backend
def test_one_among_many_is_seen_by_whoever_looks_first() -> None:
    x = np.zeros((100, 1001), np.float32)
    assert finite(x, orders=range(5))
    for row in (-1, -8, -29):
        x[row, -1] = np.inf
        assert not finite(x, orders=range(5))
        x[row, -1] = 0
    x[:] = np.nan
    assert not finite(x, orders=range(5))


@on_emulated_cuda
def test_the_smallest_numbers_are_kept_and_where_they_are_not_that_is_seen() -> None:
    check_available()
    small = np.float32(1e-45)
    assert not ask("feedback", "find_flushed", 1, CTA, small, np.float32(1))
    assert ask("feedback", "find_flushed", 1, CTA, small, np.float32(0))  # a product of zero


def test_refuses_what_does_not_fit() -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="kept must have shape"):
        absorb_residual(x, x.copy(), np.zeros(5, np.float32))
    with pytest.raises(TypeError, match="not int32"):
        all_finite(np.zeros(4, np.int32))
    with pytest.raises(ValueError, match="C-contiguous"):
        all_finite(np.zeros((4, 4), np.float32)[:, ::2])
