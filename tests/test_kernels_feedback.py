"""Values that are not encoded take up their residual, and forget none of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from compressa.kernels import absorb_residual, all_finite
from compressa.kernels.reference import feedback as reference
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, FINITE, SCALES, gradients, poisoned, residual_for, same_bits


@given(gradients(), st.integers(0, 99), st.sampled_from(SCALES))
def test_absorb_equals_reference(x: F32, seed: int, scale: float) -> None:
    residual = residual_for(x, seed)
    assert residual is not None
    before = residual.copy()
    ours, specified = x.copy(), x.copy()
    kept, specified_kept = poisoned(x.shape, np.float32), poisoned(x.shape, np.float32)
    absorb_residual(ours, residual, kept, scale)
    with np.errstate(all="ignore"):
        reference.absorb_residual(specified, residual, specified_kept, scale)
    assert same_bits(ours, specified)
    assert same_bits(kept, specified_kept)
    assert same_bits(residual, before)
    # What overflowed leaves the residual as it was.
    assert same_bits(kept[~np.isfinite(ours)], before[~np.isfinite(ours)])


@given(gradients(specials=FINITE), st.sampled_from((np.nan, np.inf, -np.inf)), st.data())
def test_one_element_decides_whether_all_are_finite(
    x: F32, bad: float, data: st.DataObject
) -> None:
    assert all_finite(x)
    if x.size:
        spoiled = x.copy()
        spoiled[data.draw(st.integers(0, x.size - 1))] = bad
        assert not all_finite(spoiled)


@pytest.mark.parametrize("dtype", [np.float16, np.uint16, np.float32, np.float64])
@given(data=st.data())
def test_finite_means_the_same_for_every_dtype(dtype: npt.DTypeLike, data: st.DataObject) -> None:
    # The largest number, the infinities, a NaN and any bits.
    mantissa = {"float16": 10, "uint16": 7, "float32": 23, "float64": 52}[np.dtype(dtype).name]
    size = 8 * np.dtype(dtype).itemsize
    infinity = (1 << size - 1) - (1 << mantissa)
    sign = 1 << size - 1
    edges = st.sampled_from([0, infinity - 1, infinity, infinity + 1, infinity | sign])
    bits = data.draw(st.lists(edges | st.integers(0, (1 << size) - 1), max_size=5))
    x = np.array(bits, f"uint{size}").view(dtype)
    assert all_finite(x) == reference.all_finite(x)


def test_the_last_of_many_is_looked_at() -> None:
    x = np.zeros((100, 1001), np.float32)
    assert all_finite(x)
    x[-1, -1] = np.inf
    assert not all_finite(x)


def test_refuses_what_does_not_fit() -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="kept must have shape"):
        absorb_residual(x, x.copy(), np.zeros(5, np.float32))
    with pytest.raises(TypeError, match="not int32"):
        all_finite(np.zeros(4, np.int32))
    with pytest.raises(ValueError, match="C-contiguous"):
        all_finite(np.zeros((4, 4), np.float32)[:, ::2])
