from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from alike import Array, alike, alike_in_threads, copied, odd, on_every_backend
from compressa.kernels import block_count
from compressa.kernels.cuda._work import HELD
from compressa.kernels.fp8 import (
    FORMATS,
    Format,
    dequantize_fp8,
    quantize_fp8,
    values,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    KINDS,
    SCALES,
    SIZES,
    as_kind,
    gradients,
    kinds,
    poisoned,
    residual_for,
    same_bits,
)

TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FORMS = tuple(FORMATS.values())
forms = st.sampled_from(FORMS)
blocks = st.sampled_from((8, 10, 64, 127, 128, 1024, 1030, 2048))
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
Keep = tuple[int | None, float]


def quantized(
    function: object,
    x: np.ndarray,
    form: Format,
    block: int,
    residual: F32 | None,
    loss_scale: float,
) -> tuple[np.ndarray, F32]:
    codes = poisoned(x.size, np.uint8)
    scales = poisoned(block_count(x.size, block), np.float32)
    function(  # type: ignore[operator]
        x, codes, scales, form=form, block=block, residual=residual, loss_scale=loss_scale
    )
    return codes, scales


def check_quantize(
    x: Array,
    form: Format,
    block: int,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
    **how: Any,
) -> None:
    def run(kernels: Any) -> list[Array | None]:
        left = copied(residual)
        return [*quantized(kernels.quantize_fp8, x, form, block, left, loss_scale), left]

    alike("fp8", run, reads=[x], **how)


@on_every_backend
@settings(max_examples=166)
@given(gradients(sizes=(*SIZES, 2500)), kinds, forms, blocks, feedback)
def test_quantize_equals_reference(x: F32, kind: str, form: Format, block: int, keep: Keep) -> None:
    residual, on_cpu = residual_for(x, keep[0]), kind == "float32"
    check_quantize(as_kind(x, kind), form, block, residual, keep[1], on_cpu=on_cpu)


@on_every_backend
@pytest.mark.parametrize("block", HELD[8])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_held_in_registers_over_many_iterations(block: int, kind: str) -> None:
    x = np.random.default_rng(block).standard_normal(8 * 37 * block + block + 7).astype(np.float32)
    x[block] = np.inf
    residual = None if kind == KINDS[-1] else residual_for(x, 1)
    check_quantize(as_kind(x, kind), FORMS[0], block, residual, 3.0, on_cpu=False)


@on_every_backend
@pytest.mark.parametrize("form", FORMS)
def test_every_number_and_every_middle_round_as_in_the_reference(form: Format) -> None:
    table = values(form)[:128]
    table = table[np.isfinite(table)]
    middles = (table[1:] + table[:-1]) / np.float32(2)
    exact = np.concatenate([table, middles])
    near = [np.nextafter(exact, np.float32(end)) for end in (0, np.inf)]
    each = np.minimum(np.concatenate([exact, *near]), np.float32(form.largest))
    x = np.concatenate([each, -each]).astype(np.float32)
    check_quantize(x, form, x.size)  # a largest number makes the scale 1


@on_every_backend
@pytest.mark.parametrize("block", [8, 1030])
@pytest.mark.parametrize("form", FORMS)
def test_more_blocks_than_teams_in_any_order(form: Format, block: int) -> None:
    x = np.random.default_rng(block).standard_normal(33_333).astype(np.float32)
    check_quantize(x, form, block, x, orders=(0, 1))


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_those_of_torch(name: str) -> None:
    form = FORMATS[name]
    every = torch.arange(256, dtype=torch.uint8).view(TORCH[name]).float().numpy()
    assert same_bits(values(form), every)
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    x = (x * 2.0 ** np.random.default_rng(1).integers(-20, 8, x.size)).astype(np.float32)
    x[0] = form.largest  # so that the scale of the only block is 1
    x = np.clip(x, -form.largest, form.largest)
    codes, scales = quantized(quantize_fp8, x, form, x.size, None, 1.0)
    assert scales.tolist() == [1.0]
    assert (codes == torch.from_numpy(x).to(TORCH[name]).view(torch.uint8).numpy()).all()


@on_every_backend
@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
    st.integers(0, 99),
    forms,
    blocks,
    st.sampled_from((1.0, 0.25, -3.3)),
    st.booleans(),
)
def test_dequantize_of_any_bytes_equals_reference(
    n: int, seed: int, form: Format, block: int, weight: float, add: bool
) -> None:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, n, dtype=np.uint8)
    scales = random.integers(0, 2**32, block_count(n, block), dtype=np.uint32).view(np.float32)
    before = random.standard_normal(n).astype(np.float32)
    options: dict[str, Any] = {"form": form, "block": block, "weight": weight, "add": add}

    def run(kernels: Any) -> list[F32]:
        out = before.copy()
        kernels.dequantize_fp8(codes, scales, out, **options)
        return [out]

    alike("fp8", run)


@on_every_backend
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("add", [False, True])
def test_every_code_is_decoded_with_special_units_as_in_the_reference(
    form: Format, add: bool
) -> None:
    codes = np.arange(256, dtype=np.uint8)
    scales = np.float32([1, -3e38, np.nan, np.inf, 1e-45, 0, 2, 3])

    def run(kernels: Any) -> list[F32]:
        out = np.linspace(-2, 2, 256, dtype=np.float32)
        kernels.dequantize_fp8(codes, scales, out, form=form, block=32, weight=0.3, add=add)
        return [out]

    alike("fp8", run)


@on_every_backend
@pytest.mark.parametrize("form", FORMS)
def test_every_code_decodes_to_its_value(form: Format) -> None:
    codes = np.arange(256, dtype=np.uint8)

    def run(kernels: Any) -> list[F32]:
        out = poisoned(256, np.float32)
        kernels.dequantize_fp8(codes, np.ones(1, np.float32), out, form=form, block=256)
        return [out]

    assert same_bits(alike("fp8", run)[0], values(form))


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("block", [64, 1030])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    block: int, shift: int
) -> None:
    whole = np.random.default_rng(block).standard_normal(2100 + 2 * shift).astype(np.float32)
    x, rest = whole[shift:-shift], {"form": FORMS[0], "block": block}

    def there_and_back(kernels: Any) -> list[Array]:
        codes, packed = odd(poisoned(x.size, np.uint8), shift)
        all_scales, scales = odd(poisoned(block_count(x.size, block), np.float32), shift)
        (left, residual), (wide, out) = odd(x, shift), odd(x, shift)
        kernels.quantize_fp8(x, packed, scales, residual=residual, **rest)
        kernels.dequantize_fp8(packed, scales, out, **rest)
        return [codes, all_scales, left, wide]

    alike("fp8", there_and_back)


@given(gradients(specials=(), magnitudes=(1e-20, 1.0, 1e20)), forms)
def test_relative_error_is_half_a_unit_in_the_last_place(x: F32, form: Format) -> None:
    codes, scales = quantized(quantize_fp8, x, form, 64, None, 1.0)
    out = poisoned(x.size, np.float32)
    dequantize_fp8(codes, scales, out, form=form, block=64)
    scale = np.repeat(scales.astype(np.float64), 64)[: x.size]
    subnormal = scale * 2.0 ** (1 - form.bias - form.mantissa) / 2
    allowed = np.maximum(np.abs(x) * 2.0 ** -(form.mantissa + 1), subnormal) * (1 + 1e-6)
    assert (np.abs(out.astype(np.float64) - x) <= allowed).all()


@pytest.mark.parametrize("form", FORMATS.values())
def test_slices_in_threads_give_the_bits_of_the_whole(form: Format) -> None:
    x = np.random.default_rng(0).standard_normal((1 << 20) + 13).astype(np.float32)

    def there_and_back() -> list[Array]:
        left, out = np.zeros_like(x), poisoned(x.size, np.float32)
        codes, scales = quantized(quantize_fp8, x, form, 64, left, 1.0)
        dequantize_fp8(codes, scales, out, form=form, block=64)
        return [codes, scales, left, out]

    alike_in_threads(there_and_back)
