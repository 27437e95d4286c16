from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from alike import Array, alike, alike_in_threads, odd, on_every_backend
from compressa.kernels import narrow, sum_casts, widen
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, SIZES, gradients, poisoned, same_bits

DTYPES = (np.float16, np.uint16)
dtypes = st.sampled_from(DTYPES)
sizes = (*SIZES, 4096, 5001)


def narrowed(x: F32, dtype: npt.DTypeLike) -> np.ndarray:
    out = poisoned(x.size, dtype)
    narrow(x, out)
    return out


def check_narrow(x: F32, dtype: npt.DTypeLike) -> None:
    def run(kernels: Any) -> list[Array]:
        out = poisoned(x.size, dtype)
        kernels.narrow(x, out)
        return [out]

    alike("casts", run, reads=[x])


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


@on_every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_rounding_equals_reference(dtype: npt.DTypeLike) -> None:
    random = np.random.default_rng(0).integers(0, 2**32, 50_000, dtype=np.uint32)
    check_narrow(
        np.concatenate([around_every_half().astype(np.float32), random.view(np.float32)]), dtype
    )


@on_every_backend
@given(gradients(sizes), dtypes)
def test_narrow_equals_reference(x: F32, dtype: npt.DTypeLike) -> None:
    check_narrow(x, dtype)


@on_every_backend
@given(gradients(sizes), gradients(sizes), dtypes, st.sampled_from((*SCALES, 0.5)))
def test_narrow_with_residual_equals_reference(
    x: F32, others: F32, dtype: npt.DTypeLike, loss_scale: float
) -> None:
    before = np.resize(others, x.size).astype(np.float32)

    def run(kernels: Any) -> list[Array]:
        out, residual = poisoned(x.size, dtype), before.copy()
        kernels.narrow(x, out, residual=residual, loss_scale=loss_scale)
        return [out, residual]

    alike("casts", run, reads=[x])


@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_keeps_what_it_can_not_send(dtype: npt.DTypeLike) -> None:
    x = np.array([1.0001, 1e6, np.inf, np.nan, 3e38], np.float32)
    residual = np.array([1e-5, 1.0, 2.0, 3.0, 1e38], np.float32)
    out = poisoned(x.size, dtype)
    narrow(x, out, residual=residual, loss_scale=16.0)
    sent = poisoned(x.size, np.float32)
    widen(out, sent)
    assert sent[0] / 16 + np.float64(residual[0]) == np.float32(x[0] + np.float32(16e-5)) / 16
    due = 1e6 + 16 if dtype is np.float16 else np.float32(1e6 + 16) - sent[1]
    assert residual[1] == due / 16
    assert residual[2:].tolist() == [2.0, 3.0, np.float32(1e38)]  # the last sum overflows


@pytest.mark.parametrize(("dtype", "most"), [(np.float16, 65519.996), (np.uint16, 3.3961773e38)])
def test_narrow_keeps_nothing_that_no_loss_scale_could_send(
    dtype: npt.DTypeLike, most: float
) -> None:
    """What is kept whole in vain is infinite in every later step, too."""
    more = np.nextafter(np.float32(most), np.float32(np.inf))
    x = np.array([most, -most, more, -more], np.float32)
    residual, out = np.zeros(4, np.float32), poisoned(4, dtype)
    narrow(x, out, residual=residual, loss_scale=1.0)
    sent = poisoned(4, np.float32)
    widen(out, sent)
    assert np.isfinite(sent).tolist() == [True, True, False, False]
    assert (residual[:2] == x[:2] - sent[:2]).all()
    assert (residual[2:] == 0).all()


@on_every_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_widen_of_any_bits_equals_reference(dtype: npt.DTypeLike, add: bool, weight: float) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)

    def run(kernels: Any) -> list[F32]:
        out = np.linspace(-2, 2, every.size, dtype=np.float32)
        kernels.widen(every, out, weight=weight, add=add)
        return [out]

    alike("casts", run, reads=[every])


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 5, 1027])
@pytest.mark.parametrize("dtype", DTYPES)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    dtype: npt.DTypeLike, n: int, shift: int
) -> None:
    x = odd(np.random.default_rng(n).standard_normal(n).astype(np.float32), shift)[1]

    def there_and_back(kernels: Any) -> list[Array]:
        all_halves, halves = odd(poisoned(n, dtype), shift)
        (left, residual), (wide, out) = odd(x, shift), odd(x, shift)
        kernels.narrow(x, halves, residual=residual)
        kernels.widen(halves, out)
        return [all_halves, left, wide]

    alike("casts", there_and_back)


def test_casts_are_those_of_torch_and_numpy() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64)
    x = bits.astype(np.uint32).view(np.float32)
    x = x[~np.isnan(x)]
    theirs = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert (narrowed(x, np.uint16) == theirs).all()
    with np.errstate(over="ignore"):
        assert same_bits(narrowed(x, np.float16), x.astype(np.float16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_16_bit_number_comes_back(dtype: npt.DTypeLike) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = poisoned(every.size, np.float32)
    widen(every, wide)
    number = ~np.isnan(wide)
    assert same_bits(narrowed(wide, dtype)[number], every[number])
    again = poisoned(every.size, np.float32)
    widen(narrowed(wide, dtype), again)
    assert np.isnan(again[~number]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_in_threads_give_the_bits_of_the_whole(dtype: npt.DTypeLike) -> None:
    x = np.random.default_rng(0).standard_normal((1 << 20) + 13).astype(np.float32)

    def there_and_back() -> list[Array]:
        halves, wide = narrowed(x, dtype), poisoned(x.size, np.float32)
        widen(halves, wide)
        return [halves, wide]

    alike_in_threads(there_and_back)


def test_refuses_other_dtypes() -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(TypeError, match="float16, or bfloat16 as uint16, not int16"):
        narrow(x, np.empty(4, np.int16))
    with pytest.raises(TypeError, match="float16, or bfloat16"):
        widen(x, x.copy())


def test_sums_of_vectors_of_other_dtypes_are_refused() -> None:
    first, out = np.ones(4, np.float16), poisoned(4, np.float32)
    with pytest.raises(TypeError, match="must have one dtype, not float16 and uint16"):
        sum_casts([first, first.view(np.uint16)], out)
    with pytest.raises(TypeError, match="float16, or bfloat16"):
        sum_casts([out], out)
    assert same_bits(out, poisoned(4, np.float32))
