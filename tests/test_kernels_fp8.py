from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from compressa.kernels import block_count
from compressa.kernels.fp8 import (
    FORMATS,
    Format,
    dequantize_fp8,
    quantize_fp8,
    sum_fp8,
    values,
)
from compressa.kernels.reference import fp8 as reference
from compressa.kernels.threads import Team
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, SCALES, gradients, poisoned, residual_for, same_bits
from sum_cases import any_bytes, any_units, counts, dtypes, one_by_one, weights

TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
forms = st.sampled_from(list(FORMATS.values()))
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))


def quantized(
    function: object, x: np.ndarray, form: Format, block: int, residual: F32 | None, scale: float
) -> tuple[np.ndarray, F32]:
    codes = poisoned(x.size, np.uint8)
    scales = poisoned(block_count(x.size, block), np.float32)
    function(  # type: ignore[operator]
        x, codes, scales, form=form, block=block, residual=residual, scale=scale
    )
    return codes, scales


@given(gradients(), forms, st.sampled_from([8, 10, 64]), feedback)
def test_quantize_equals_reference(
    x: F32, form: Format, block: int, keep: tuple[int | None, float]
) -> None:
    ours, specified = residual_for(x, keep[0]), residual_for(x, keep[0])
    payload = quantized(quantize_fp8, x, form, block, ours, keep[1])
    with np.errstate(all="ignore"):
        expected = quantized(reference.quantize_fp8, x, form, block, specified, keep[1])
    assert same_bits(payload[0], expected[0])
    assert same_bits(payload[1], expected[1])
    assert ours is None or specified is None or same_bits(ours, specified)


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_those_of_torch(name: str) -> None:
    form = FORMATS[name]
    every = torch.arange(256, dtype=torch.uint8).view(TORCH[name]).float().numpy()
    assert same_bits(values(form), every)
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    x = (x * 2.0 ** np.random.default_rng(1).integers(-20, 8, x.size)).astype(np.float32)
    x[0] = form.largest  # so that the unit of the only block is 1
    x = np.clip(x, -form.largest, form.largest)
    codes, scales = quantized(quantize_fp8, x, form, x.size, None, 1.0)
    assert scales.tolist() == [1.0]
    assert (codes == torch.from_numpy(x).to(TORCH[name]).view(torch.uint8).numpy()).all()


@pytest.mark.parametrize("form", FORMATS.values())
@pytest.mark.parametrize("add", [False, True])
def test_dequantize_of_any_bytes_equals_reference(form: Format, add: bool) -> None:
    codes = np.arange(256, dtype=np.uint8)
    scales = np.float32([1, -3e38, np.nan, np.inf, 1e-45, 0, 2, 3])
    ours = np.linspace(-2, 2, 256, dtype=np.float32)
    specified = ours.copy()
    dequantize_fp8(codes, scales, ours, form=form, block=32, weight=0.3, add=add)
    with np.errstate(all="ignore"):
        reference.dequantize_fp8(codes, scales, specified, form=form, block=32, weight=0.3, add=add)
    assert same_bits(ours, specified)


@given(gradients(specials=(), magnitudes=(1e-20, 1.0, 1e20)), forms)
def test_relative_error_is_half_a_unit_in_the_last_place(x: F32, form: Format) -> None:
    codes, scales = quantized(quantize_fp8, x, form, 64, None, 1.0)
    out = poisoned(x.size, np.float32)
    dequantize_fp8(codes, scales, out, form=form, block=64)
    unit = np.repeat(scales.astype(np.float64), 64)[: x.size]
    subnormal = unit * 2.0 ** (1 - form.bias - form.mantissa) / 2
    allowed = np.maximum(np.abs(x) * 2.0 ** -(form.mantissa + 1), subnormal) * (1 + 1e-6)
    assert (np.abs(out.astype(np.float64) - x) <= allowed).all()


@pytest.mark.parametrize("form", FORMATS.values())
def test_slices_in_threads_give_the_bits_of_the_whole(form: Format) -> None:
    x = np.random.default_rng(0).standard_normal((1 << 20) + 13).astype(np.float32)
    whole, sliced = np.zeros_like(x), np.zeros_like(x)
    codes, scales = quantized(quantize_fp8, x, form, 64, whole, 1.0)
    with ThreadPoolExecutor(3) as pool, Team(pool, 4).enlisted():
        again = quantized(quantize_fp8, x, form, 64, sliced, 1.0)
    assert same_bits(codes, again[0])
    assert same_bits(scales, again[1])
    assert same_bits(whole, sliced)


@pytest.mark.parametrize("form", FORMATS.values())
def test_every_code_decodes_to_its_value(form: Format) -> None:
    codes, out = np.arange(256, dtype=np.uint8), poisoned(256, np.float32)
    dequantize_fp8(codes, np.ones(1, np.float32), out, form=form, block=256)
    assert same_bits(out, values(form))


def payloads(n: int, block: int, count: int, seed: int) -> tuple[list[Any], list[Any]]:
    random = np.random.default_rng(seed)
    codes = [any_bytes(random, n, seed % 2) for _ in range(count)]
    return codes, [any_units(random, block_count(n, block)) for _ in range(count)]


@given(
    st.sampled_from((0, 1, 9, 257, 2500)),
    counts,
    forms,
    st.sampled_from((8, 10, 128, 2048)),
    weights,
    dtypes,
    st.integers(0, 99),
)
def test_sum_is_that_of_one_payload_after_the_other(
    n: int, count: int, form: Format, block: int, weight: float, dtype: Any, seed: int
) -> None:
    codes, scales = payloads(n, block, count, seed)
    rest: dict[str, Any] = {"form": form, "block": block, "weight": weight}

    def add(i: int, total: F32) -> None:
        dequantize_fp8(codes[i], scales[i], total, add=True, **rest)

    due = one_by_one(add, count, n, dtype)
    for function in (sum_fp8, reference.sum_fp8):
        out = poisoned(n, dtype)
        with np.errstate(all="ignore"):
            function(codes, scales, out, **rest)
        assert same_bits(out, due)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sums_in_threads_are_those_of_the_whole(dtype: Any) -> None:
    n, rest = (1 << 20) + 13, {"form": FORMATS["e4m3"], "block": 128}
    codes, scales = payloads(n, 128, 3, 0)
    whole, threaded = poisoned(n, dtype), poisoned(n, dtype)
    sum_fp8(codes, scales, whole, **rest)
    with ThreadPoolExecutor(3) as pool, Team(pool, 4).enlisted():
        sum_fp8(codes, scales, threaded, **rest)
    assert same_bits(whole, threaded)


def test_sums_of_unfit_payloads_are_refused() -> None:
    codes, scales = payloads(16, 8, 2, 0)
    out, rest = poisoned(16, np.float32), {"form": FORMATS["e4m3"], "block": 8}
    with pytest.raises(ValueError, match=r"codes must have shape \(16,\)"):
        sum_fp8([codes[0], codes[1][:15]], scales, out, **rest)
    with pytest.raises(ValueError, match=r"scales must have shape \(2,\)"):
        sum_fp8(codes, [scales[0], scales[1][:1]], out, **rest)
    with pytest.raises(ValueError, match="one of each array"):
        sum_fp8(codes, scales[:1], out, **rest)
    assert same_bits(out, poisoned(16, np.float32))
