"""The CUDA kernels for integers of a shared unit, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import Noise
from compressa.kernels.cuda import integers
from compressa.kernels.integers import DTYPES
from compressa.kernels.reference import integers as reference
from emulated_cuda import on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, gradients, poisoned, same_bits

pytestmark = on_emulated_cuda

NOISE = Noise(seed=3, stream=5, step=7, parameter=1)


def both_rounded(
    x: F32, factor: float, most: int, dtype: type, noise: Noise
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    ours, due = poisoned(x.shape, dtype), poisoned(x.shape, dtype)
    integers.round_to_integers(x, factor, most, ours, noise)
    with np.errstate(all="ignore"):
        reference.round_to_integers(x, factor, most, due, noise)
    return ours, due


@given(
    gradients(),
    st.sampled_from((0.0, 1.0, 127 / 3.0, 2.0**-140, 2.0**170)),
    st.sampled_from(DTYPES),
    st.sampled_from((1, 3)),
    st.sampled_from((0, 1, 255, 256, 1000, 2**40 + 2)),
)
def test_rounding_equals_reference(
    x: F32, factor: float, dtype: type, part: int, start: int
) -> None:
    most = int(np.iinfo(dtype).max) // part
    ours, due = both_rounded(x, factor, most, dtype, NOISE._replace(start=start))
    assert same_bits(ours, due)


@given(
    st.sampled_from((0, 1, 3, 4, 127, 257, 1030)),
    st.integers(0, 99),
    st.sampled_from(DTYPES),
    st.sampled_from((0.0, 1e-3, -0.7, 1e-44, 1e300, np.inf, np.nan)),
)
def test_scaling_of_any_integers_equals_reference(
    n: int, seed: int, dtype: type, unit: float
) -> None:
    limits = np.iinfo(dtype)
    q = np.random.default_rng(seed).integers(limits.min, limits.max, n, dtype, endpoint=True)
    ours, due = poisoned(n, np.float32), poisoned(n, np.float32)
    integers.scale_integers(q, unit, ours)
    with np.errstate(all="ignore"):
        reference.scale_integers(q, unit, due)
    assert same_bits(ours, due)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_take_more_than_one_turn(dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal(90_001).astype(np.float32)
    ours, due = both_rounded(x, 20.0, 42, dtype, NOISE._replace(start=77))
    assert same_bits(ours, due)
    out, due_out = poisoned(x.size, np.float32), poisoned(x.size, np.float32)
    integers.scale_integers(ours, 0.05, out)
    reference.scale_integers(due, 0.05, due_out)
    assert same_bits(out, due_out)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    dtype: type, shift: int
) -> None:
    whole = np.random.default_rng(shift).standard_normal(1100 + 2 * shift).astype(np.float32)
    part = slice(shift, -shift)
    ours = poisoned(whole.size, dtype)
    due, out = ours.copy(), whole.copy()
    due_out = out.copy()
    integers.round_to_integers(whole[part], 9.0, 99, ours[part], NOISE)
    reference.round_to_integers(whole[part], 9.0, 99, due[part], NOISE)
    assert same_bits(ours, due)
    integers.scale_integers(ours[part], 0.1, out[part])
    reference.scale_integers(due[part], 0.1, due_out[part])
    assert same_bits(out, due_out)
