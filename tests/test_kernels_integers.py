from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compressa.kernels import Noise
from compressa.kernels.integers import DTYPES, round_to_integers, scale_integers
from compressa.kernels.reference import integers as reference
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, gradients, poisoned, same_bits

NOISE = Noise(seed=3, stream=5, step=7, parameter=1, start=0)


@given(
    gradients(),
    st.sampled_from((0.0, 1.0, 127 / 3.0, 2.0**-140, 2.0**170)),
    st.sampled_from(DTYPES),
    st.sampled_from((0, 1, 255, 256, 1000)),
)
def test_integers_equal_reference(x: F32, factor: float, dtype: type, start: int) -> None:
    most, noise = int(np.iinfo(dtype).max) // 3, NOISE._replace(start=start)
    ours, specified = poisoned(x.shape, dtype), poisoned(x.shape, dtype)
    round_to_integers(x, factor, most, ours, noise)
    with np.errstate(all="ignore"):
        reference.round_to_integers(x, factor, most, specified, noise)
    assert same_bits(ours, specified)
    assert np.abs(ours.astype(np.int64)).max(initial=0) <= most
    out, expected = poisoned(x.shape, np.float32), poisoned(x.shape, np.float32)
    scale_integers(ours, 1e-3, out)
    reference.scale_integers(ours, 1e-3, expected)
    assert same_bits(out, expected)


def test_bits_do_not_depend_on_slices() -> None:
    x = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    noise = NOISE._replace(start=77)
    alone, shared = np.empty(x.size, np.int8), np.empty(x.size, np.int8)
    round_to_integers(x, 20.0, 42, alone, noise)
    with ThreadPoolExecutor(2) as pool, Team(pool, 3).enlisted():
        round_to_integers(x, 20.0, 42, shared, noise)
    assert same_bits(alone, shared)


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
