"""The CUDA kernels of eight-bit floats, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import block_count
from compressa.kernels.cuda import fp8
from compressa.kernels.cuda._device import running_on
from compressa.kernels.fp8 import FORMATS, Format, values
from compressa.kernels.reference import fp8 as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    F32,
    KINDS,
    SCALES,
    SIZES,
    as_kind,
    gradients,
    poisoned,
    residual_for,
    same_bits,
)
from sum_cases import COUNTS, any_bytes, any_units, counts, dtypes, weights

pytestmark = on_emulated_cuda

FORMS = tuple(FORMATS.values())
BLOCKS = (8, 10, 64, 127, 1024, 1030)


def payload_of(n: int, block: int) -> tuple[Any, Any]:
    return poisoned(n, np.uint8), poisoned(block_count(n, block), np.float32)


def assert_quantize_equals_reference(
    x: np.ndarray, form: Format, block: int, residual: F32 | None = None, scale: float = 1.0
) -> None:
    ours, specified = (None if residual is None else residual.copy() for _ in range(2))
    payload, due = payload_of(x.size, block), payload_of(x.size, block)
    rest: dict[str, Any] = {"form": form, "block": block, "scale": scale}
    fp8.quantize_fp8(x, *payload, residual=ours, **rest)
    with np.errstate(all="ignore"):
        reference.quantize_fp8(x, *due, residual=specified, **rest)
    assert same_bits(payload[0], due[0])
    assert same_bits(payload[1], due[1])
    assert ours is None or specified is None or same_bits(ours, specified)


@given(
    gradients(sizes=(*SIZES, 2500)),
    st.sampled_from(KINDS),
    st.sampled_from(FORMS),
    st.sampled_from(BLOCKS),
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
)
def test_quantize_equals_reference(
    x: F32, kind: str, form: Format, block: int, seed: int | None, scale: float
) -> None:
    given_x = as_kind(x, kind)
    assert_quantize_equals_reference(given_x, form, block, residual_for(x, seed), scale)


@pytest.mark.parametrize("form", FORMS)
def test_every_number_and_every_middle_round_as_in_the_reference(form: Format) -> None:
    table = values(form)[:128]
    table = table[np.isfinite(table)]
    middles = (table[1:] + table[:-1]) / np.float32(2)
    exact = np.concatenate([table, middles])
    near = [np.nextafter(exact, np.float32(end)) for end in (0, np.inf)]
    each = np.minimum(np.concatenate([exact, *near]), np.float32(form.largest))
    x = np.concatenate([each, -each]).astype(np.float32)
    assert_quantize_equals_reference(x, form, x.size)  # a largest number makes the unit 1


@pytest.mark.parametrize("block", [8, 1030])
def test_more_blocks_than_teams_in_any_order(block: int) -> None:
    x = np.random.default_rng(block).standard_normal(33_333).astype(np.float32)
    for seed in range(3):
        with running_on(Emulated(seed)):
            assert_quantize_equals_reference(x, FORMS[seed % 2], block, x)


@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
    st.integers(0, 99),
    st.sampled_from(FORMS),
    st.sampled_from(BLOCKS),
    st.sampled_from((1.0, 0.25, -3.3)),
    st.booleans(),
)
def test_dequantize_of_any_bytes_equals_reference(
    n: int, seed: int, form: Format, block: int, weight: float, add: bool
) -> None:
    random = np.random.default_rng(seed)
    codes, scales = payload_of(n, block)
    codes[:] = random.integers(0, 256, n, dtype=np.uint8)
    scales[:] = random.integers(0, 2**32, scales.size, dtype=np.uint32).view(np.float32)
    ours = random.standard_normal(n).astype(np.float32)
    specified = ours.copy()
    rest: dict[str, Any] = {"form": form, "block": block, "weight": weight, "add": add}
    fp8.dequantize_fp8(codes, scales, ours, **rest)
    with np.errstate(all="ignore"):
        reference.dequantize_fp8(codes, scales, specified, **rest)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("form", FORMS)
def test_every_code_decodes_to_its_value(form: Format) -> None:
    codes, out = np.arange(256, dtype=np.uint8), poisoned(256, np.float32)
    fp8.dequantize_fp8(codes, np.ones(1, np.float32), out, form=form, block=256)
    assert same_bits(out, values(form))


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("block", [64, 1030])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    block: int, shift: int
) -> None:
    whole = np.random.default_rng(block).standard_normal(2100 + 2 * shift).astype(np.float32)
    inner, x = slice(shift, -shift), whole[shift:-shift]
    rest: dict[str, Any] = {"form": FORMS[0], "block": block}
    codes, scales = poisoned(whole.size, np.uint8), payload_of(x.size, block)[1]
    untouched, left, wide = codes.copy(), whole.copy(), whole.copy()
    due, specified, decoded = payload_of(x.size, block), x.copy(), x.copy()
    fp8.quantize_fp8(x, codes[inner], scales, residual=left[inner], **rest)
    reference.quantize_fp8(x, *due, residual=specified, **rest)
    fp8.dequantize_fp8(codes[inner], scales, wide[inner], **rest)
    reference.dequantize_fp8(*due, decoded, **rest)
    assert same_bits(codes[inner], due[0])
    assert same_bits(left[inner], specified)
    assert same_bits(wide[inner], decoded)
    for edge in (slice(0, shift), slice(-shift, None)):
        assert same_bits(codes[edge], untouched[edge])
        assert same_bits(left[edge], whole[edge])
        assert same_bits(wide[edge], whole[edge])


def assert_sum_equals_reference(
    n: int, form: Format, block: int, count: int, dtype: Any, weight: float, seed: int
) -> None:
    random, shift = np.random.default_rng(seed), seed % 4
    codes = [any_bytes(random, n, shift) for _ in range(count)]
    scales = [any_units(random, block_count(n, block), shift) for _ in range(count)]
    whole, specified = poisoned(n + 2 * shift, dtype), poisoned(n + 2 * shift, dtype)
    place, rest = slice(shift, shift + n), {"form": form, "block": block, "weight": weight}
    fp8.sum_fp8(codes, scales, whole[place], **rest)
    with np.errstate(all="ignore"):
        reference.sum_fp8(codes, scales, specified[place], **rest)
    assert same_bits(whole, specified)


@settings(max_examples=60)
@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
    st.sampled_from(FORMS),
    st.sampled_from(BLOCKS),
    counts,
    dtypes,
    weights,
    st.integers(0, 99),
)
def test_sum_equals_reference(
    n: int, form: Format, block: int, count: int, dtype: Any, weight: float, seed: int
) -> None:
    assert_sum_equals_reference(n, form, block, count, dtype, weight, seed)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_more_blocks_than_teams_in_any_order(count: int, dtype: Any) -> None:
    for seed, block in enumerate((64, 1030)):
        with running_on(Emulated(seed)):
            assert_sum_equals_reference(40_001, FORMS[seed], block, count, dtype, 0.3, seed)
