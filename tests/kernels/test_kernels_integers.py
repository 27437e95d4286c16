from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, alike_in_threads, odd, on_every_backend
from compressa.kernels import Noise
from compressa.kernels.integers import DTYPES, round_to_integers
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, gradients, poisoned

NOISE = Noise(seed=3, stream=5, step=7, parameter=1, start=0)


def check_rounding(
    x: F32, factor: float, most: int, dtype: type, start: int, shift: int = 0
) -> Array:
    """And that of scaling what comes of it; return the integers."""

    def run(kernels: Any) -> list[Array]:
        (whole, q), (wide, out) = odd(poisoned(x.shape, dtype), shift), odd(x, shift)
        kernels.round_to_integers(x, factor, most, q, NOISE._replace(start=start))
        kernels.scale_integers(q, 1e-3, out)
        return [whole, wide]

    whole = alike("integers", run, reads=[x])[0]
    return whole[shift : shift + x.size]


@on_every_backend
@given(
    gradients(),
    st.sampled_from((0.0, 1.0, 127 / 3.0, 2.0**-140, 2.0**170)),
    st.sampled_from(DTYPES),
    st.sampled_from((1, 3)),
    st.sampled_from((0, 1, 255, 256, 1000, 2**40 + 2)),
)
def test_integers_equal_reference(
    x: F32, factor: float, dtype: type, part: int, start: int
) -> None:
    most = int(np.iinfo(dtype).max) // part
    found = check_rounding(x, factor, most, dtype, start)
    assert np.abs(found.astype(np.int64)).max(initial=0) <= most


@on_every_backend
@given(
    st.sampled_from((0, 1, 3, 4, 127, 257, 1030)),
    st.integers(0, 99),
    st.sampled_from(DTYPES),
    st.sampled_from((0.0, 1e-3, -0.7, 1e-44, 1e300, np.inf, np.nan)),
)
def test_scaling_of_any_integers_equals_reference(
    n: int, seed: int, dtype: type, scale: float
) -> None:
    limits = np.iinfo(dtype)
    q = np.random.default_rng(seed).integers(limits.min, limits.max, n, dtype, endpoint=True)

    def run(kernels: Any) -> list[F32]:
        out = poisoned(n, np.float32)
        kernels.scale_integers(q, scale, out)
        return [out]

    alike("integers", run, reads=[q])


@on_every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_take_more_than_one_iteration(dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal(90_001).astype(np.float32)
    check_rounding(x, 20.0, 42, dtype, 77)


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    dtype: type, shift: int
) -> None:
    x = np.random.default_rng(shift).standard_normal(1100).astype(np.float32)
    check_rounding(odd(x, shift)[1], 9.0, 99, dtype, 0, shift)


def test_bits_do_not_depend_on_slices() -> None:
    x = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)

    def rounded() -> list[Array]:
        q = np.empty(x.size, np.int8)
        round_to_integers(x, 20.0, 42, q, NOISE._replace(start=77))
        return [q]

    alike_in_threads(rounded)


def test_rounding_is_unbiased_and_its_variance_is_that_of_the_fraction() -> None:
    values = np.float32([0.0, 0.25, -0.25, 0.5, 0.9, -1.75, 3.0])
    n = 200_000
    for i, value in enumerate(values):
        q = np.empty(n, np.int8)
        round_to_integers(np.full(n, value), 1.0, 4, q, NOISE._replace(step=i))
        fraction = float(value) - np.floor(float(value))
        variance = fraction * (1 - fraction)
        assert abs(q.mean() - float(value)) <= 6 * np.sqrt(variance / n) + 2.0**-16
        assert abs(q.var() - variance) <= 6 * np.sqrt(variance / n) + 2.0**-15
        assert set(np.unique(q)) <= {np.floor(value), np.ceil(value)}


def test_whole_numbers_are_kept_and_the_largest_is_never_passed() -> None:
    x = np.arange(-127, 128, dtype=np.float32)
    q = np.empty(x.size, np.int8)
    round_to_integers(x, 1.0, 127, q, NOISE)
    assert (q == x).all()
    round_to_integers(x, 3.0, 127, q, NOISE)
    assert (q == np.clip(3 * x, -127, 127)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_limited_too(value: float) -> None:
    q = np.empty(1, np.int32)
    round_to_integers(np.float32([value]), 1.0, 9, q, NOISE)
    assert q[0] == (-9 if value < 0 else 9)


@pytest.mark.parametrize(
    ("factor", "most", "dtype", "error"),
    [
        (-1.0, 1, np.int8, ValueError),
        (np.inf, 1, np.int8, ValueError),
        (1.0, 0, np.int8, ValueError),
        (1.0, 128, np.int8, ValueError),
        (1.0, 1, np.uint8, TypeError),
    ],
)
def test_refuses_what_could_overflow(
    factor: float, most: int, dtype: type, error: type[Exception]
) -> None:
    with pytest.raises(error):
        round_to_integers(np.zeros(3, np.float32), factor, most, np.empty(3, dtype), NOISE)
