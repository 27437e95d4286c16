"""The CUDA casts, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compressa.kernels.cuda import casts
from compressa.kernels.reference import casts as reference
from emulated_cuda import on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, SIZES, gradients, poisoned, same_bits
from sum_cases import COUNTS, any_bytes
from sum_cases import DTYPES as OUT_DTYPES

pytestmark = on_emulated_cuda

DTYPES = (np.float16, np.uint16)
dtypes = st.sampled_from(DTYPES)
sizes = (*SIZES, 4096, 5001)


def around_every_half() -> F32:
    """Around every number of float16, every middle between two, and both its ends."""
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    half = half[np.isfinite(half)]
    ordered = np.sort(half)
    middles = (ordered[1:] + ordered[:-1]) / np.float32(2)
    ends = np.float32([65519.996, 65520, 65536, 2.0**-25, 2.0**-24, 3e38, np.inf, np.nan])
    exact = np.concatenate([half, middles, ends, -ends])
    with np.errstate(all="ignore"):
        return np.concatenate([exact, np.nextafter(exact, np.float32(0)), exact * (1 + 2.0**-23)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_rounding_equals_reference(dtype: npt.DTypeLike) -> None:
    random = np.random.default_rng(0).integers(0, 2**32, 50_000, dtype=np.uint32)
    x = np.concatenate([around_every_half().astype(np.float32), random.view(np.float32)])
    out, specified = poisoned(x.size, dtype), poisoned(x.size, dtype)
    casts.narrow(x, out)
    with np.errstate(all="ignore"):
        reference.narrow(x, specified)
    assert same_bits(out, specified)


@given(gradients(sizes), dtypes)
def test_narrow_equals_reference(x: F32, dtype: npt.DTypeLike) -> None:
    out, specified = poisoned(x.size, dtype), poisoned(x.size, dtype)
    casts.narrow(x, out)
    with np.errstate(all="ignore"):
        reference.narrow(x, specified)
    assert same_bits(out, specified)


@given(gradients(sizes), gradients(sizes), dtypes, st.sampled_from(SCALES))
def test_narrow_with_residual_equals_reference(
    x: F32, before: F32, dtype: npt.DTypeLike, scale: float
) -> None:
    ours = np.resize(before, x.size).astype(np.float32)
    specified = ours.copy()
    out, due = poisoned(x.size, dtype), poisoned(x.size, dtype)
    casts.narrow(x, out, residual=ours, scale=scale)
    with np.errstate(all="ignore"):
        reference.narrow(x, due, residual=specified, scale=scale)
    assert same_bits(out, due)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_widen_of_any_bits_equals_reference(dtype: npt.DTypeLike, add: bool, weight: float) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    ours = np.linspace(-2, 2, every.size, dtype=np.float32)
    specified = ours.copy()
    casts.widen(every, ours, weight=weight, add=add)
    with np.errstate(all="ignore"):
        reference.widen(every, specified, weight=weight, add=add)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 5, 1027])
@pytest.mark.parametrize("dtype", DTYPES)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    dtype: npt.DTypeLike, n: int, shift: int
) -> None:
    whole = np.random.default_rng(n).standard_normal(n + 2 * shift).astype(np.float32)
    inner, x = slice(shift, -shift), whole[shift:-shift]
    halves, left, wide = poisoned(whole.size, dtype), whole.copy(), whole.copy()
    untouched, due = halves.copy(), poisoned(n, dtype)
    specified, decoded = x.copy(), x.copy()
    casts.narrow(x, halves[inner], residual=left[inner])
    reference.narrow(x, due, residual=specified)
    casts.widen(halves[inner], wide[inner])
    reference.widen(due, decoded)
    assert same_bits(halves[inner], due)
    assert same_bits(left[inner], specified)
    assert same_bits(wide[inner], decoded)
    for edge in (slice(0, shift), slice(-shift, None)):
        assert same_bits(halves[edge].view(np.uint16), untouched[edge].view(np.uint16))
        assert same_bits(left[edge], whole[edge])
        assert same_bits(wide[edge], whole[edge])


@pytest.mark.parametrize("n", [0, 1, 1027, 40_001])
@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", COUNTS)
def test_sum_of_any_bits_equals_reference(count: int, dtype: Any, out_dtype: Any, n: int) -> None:
    random, shift = np.random.default_rng(n + count), count % 4
    x = [any_bytes(random, 2 * n, 2 * shift).view(dtype) for _ in range(count)]
    whole, specified = poisoned(n + 2 * shift, out_dtype), poisoned(n + 2 * shift, out_dtype)
    place = slice(shift, shift + n)
    casts.sum_casts(x, whole[place], weight=0.3)
    with np.errstate(all="ignore"):
        reference.sum_casts(x, specified[place], weight=0.3)
    assert same_bits(whole, specified)
