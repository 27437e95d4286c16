from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from compressa.kernels import narrow, sum_casts, widen
from compressa.kernels.reference import casts as reference
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, gradients, poisoned, same_bits
from sum_cases import any_bytes, counts, one_by_one, weights
from sum_cases import dtypes as out_dtypes

DTYPES = (np.float16, np.uint16)
dtypes = st.sampled_from(DTYPES)


def narrowed(x: F32, dtype: npt.DTypeLike) -> np.ndarray:
    out = poisoned(x.size, dtype)
    narrow(x, out)
    return out


@given(gradients(), dtypes)
def test_narrow_equals_reference(x: F32, dtype: npt.DTypeLike) -> None:
    specified = poisoned(x.size, dtype)
    with np.errstate(all="ignore"):
        reference.narrow(x, specified)
    assert same_bits(narrowed(x, dtype), specified)


@given(st.data(), dtypes, st.sampled_from([1.0, 0.5, 3.0, 65536.0]))
def test_narrow_with_residual_equals_reference(
    data: st.DataObject, dtype: npt.DTypeLike, scale: float
) -> None:
    x = data.draw(gradients())
    before = np.resize(data.draw(gradients()), x.size).astype(np.float32)
    ours, theirs = before.copy(), before.copy()
    out, specified = poisoned(x.size, dtype), poisoned(x.size, dtype)
    narrow(x, out, residual=ours, scale=scale)
    with np.errstate(all="ignore"):
        reference.narrow(x, specified, residual=theirs, scale=scale)
    assert same_bits(out, specified)
    assert same_bits(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_keeps_what_it_can_not_send(dtype: npt.DTypeLike) -> None:
    x = np.array([1.0001, 1e6, np.inf, np.nan, 3e38], np.float32)
    residual = np.array([1e-5, 1.0, 2.0, 3.0, 1e38], np.float32)
    out = poisoned(x.size, dtype)
    narrow(x, out, residual=residual, scale=16.0)
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
    narrow(x, out, residual=residual, scale=1.0)
    sent = poisoned(4, np.float32)
    widen(out, sent)
    assert np.isfinite(sent).tolist() == [True, True, False, False]
    assert (residual[:2] == x[:2] - sent[:2]).all()
    assert (residual[2:] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add", [False, True])
def test_widen_of_any_bits_equals_reference(dtype: npt.DTypeLike, add: bool) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    ours = np.linspace(-2, 2, every.size, dtype=np.float32)
    specified = ours.copy()
    widen(every, ours, weight=0.3, add=add)
    with np.errstate(all="ignore"):
        reference.widen(every, specified, weight=0.3, add=add)
    assert same_bits(ours, specified)


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
    whole, wide = narrowed(x, dtype), poisoned(x.size, np.float32)
    widen(whole, wide)
    with ThreadPoolExecutor(3) as pool, Team(pool, 4).enlisted():
        assert same_bits(whole, narrowed(x, dtype))
        threaded = poisoned(x.size, np.float32)
        widen(whole, threaded)
    assert same_bits(threaded, wide)


def test_refuses_other_dtypes() -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(TypeError, match="float16, or bfloat16 as uint16, not int16"):
        narrow(x, np.empty(4, np.int16))
    with pytest.raises(TypeError, match="float16, or bfloat16"):
        widen(x, x.copy())


def any_halves(n: int, dtype: Any, count: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [any_bytes(random, 2 * n, seed % 2 * 2).view(dtype) for _ in range(count)]


@given(
    st.sampled_from((0, 1, 9, 191, 1024, 2500)),
    counts,
    dtypes,
    weights,
    out_dtypes,
    st.integers(0, 99),
)
def test_sum_is_that_of_one_vector_after_the_other(
    n: int, count: int, dtype: Any, weight: float, out_dtype: Any, seed: int
) -> None:
    x = any_halves(n, dtype, count, seed)

    def add(i: int, total: F32) -> None:
        widen(x[i], total, weight=weight, add=True)

    due = one_by_one(add, count, n, out_dtype)
    for function in (sum_casts, reference.sum_casts):
        out = poisoned(n, out_dtype)
        with np.errstate(all="ignore"):
            function(x, out, weight=weight)
        assert same_bits(out, due)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_in_threads_are_those_of_the_whole(dtype: npt.DTypeLike) -> None:
    n = (1 << 20) + 13
    x = any_halves(n, dtype, 3, 0)
    whole, threaded = poisoned(n, np.float32), poisoned(n, np.float32)
    sum_casts(x, whole)
    with ThreadPoolExecutor(3) as pool, Team(pool, 4).enlisted():
        sum_casts(x, threaded)
    assert same_bits(whole, threaded)


def test_sums_of_unfit_vectors_are_refused() -> None:
    first, out = np.ones(4, np.float16), poisoned(4, np.float32)
    with pytest.raises(ValueError, match=r"x must have shape \(4,\)"):
        sum_casts([first, first[:3]], out)
    with pytest.raises(TypeError, match="must have one dtype, not float16 and uint16"):
        sum_casts([first, first.view(np.uint16)], out)
    with pytest.raises(TypeError, match="float16, or bfloat16"):
        sum_casts([out], out)
    assert same_bits(out, poisoned(4, np.float32))
