"""The CUDA kernels of signs with two means, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import block_count, group_sign_bytes
from compressa.kernels.cuda import onebit_sgd
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import onebit_sgd as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import F32, KINDS, SCALES, as_kind, gradients, poisoned, residual_for, same_bits

pytestmark = on_emulated_cuda

GROUPS = (1, 5, 8, 27, 64, 260, 600, 1024, 1032, 4096, 1 << 16, 1 << 40)
WEIGHTS = (1.0, 0.25, -3.3)


def guarded(array: np.ndarray[Any, Any], shift: int) -> tuple[np.ndarray[Any, Any], slice]:
    """A copy at an odd address, with something on either side, and where it is."""
    whole = poisoned(array.size + 16, array.dtype)
    part = slice(shift, shift + array.size)
    whole[part] = array
    return whole, part


def check_quantize(
    x: np.ndarray[Any, Any], group: int, residual: F32 | None, scale: float, shift: int = 0
) -> None:
    bits, places = guarded(poisoned(group_sign_bytes(x.size, group), np.uint8), shift)
    means, pairs = guarded(poisoned(2 * block_count(x.size, group), np.float32), shift)
    due_bits, due_means = bits.copy(), means.copy()
    left, elements = guarded(x if residual is None else residual, shift)
    due_left, odd_x = left.copy(), guarded(x, shift)[0][elements]
    rest: dict[str, Any] = {"group": group, "scale": scale, "residual": None}
    due_rest = rest.copy()
    if residual is not None:
        rest["residual"], due_rest["residual"] = left[elements], due_left[elements]
    onebit_sgd.two_means_quantize(odd_x, bits[places], means[pairs], **rest)
    with np.errstate(all="ignore"):
        reference.two_means_quantize(x, due_bits[places], due_means[pairs], **due_rest)
    assert same_bits(bits, due_bits)
    assert same_bits(means, due_means)
    assert same_bits(left, due_left)


def check_dequantize(n: int, group: int, seed: int, weight: float, add: bool, shift: int) -> None:
    random = np.random.default_rng(seed)
    bits = random.integers(0, 256, group_sign_bytes(n, group) + shift, dtype=np.uint8)[shift:]
    means = random.integers(0, 2**32, 2 * block_count(n, group), dtype=np.uint32).view(np.float32)
    ours = random.standard_normal(n + 8).astype(np.float32)
    due, part = ours.copy(), slice(shift, shift + n)
    options: dict[str, Any] = {"group": group, "weight": weight, "add": add}
    onebit_sgd.two_means_dequantize(bits, means, ours[part], **options)
    with np.errstate(all="ignore"):
        reference.two_means_dequantize(bits, means, due[part], **options)
    assert same_bits(ours, due)


@given(
    gradients(),
    st.sampled_from(KINDS),
    st.sampled_from(GROUPS),
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
    st.integers(0, 5),
)
def test_quantize_equals_reference(
    x: F32, kind: str, group: int, seed: int | None, scale: float, shift: int
) -> None:
    check_quantize(as_kind(x, kind), group, residual_for(x, seed), scale, shift)


@given(
    st.sampled_from((0, 1, 9, 64, 257, 2500)),
    st.sampled_from(GROUPS),
    st.integers(0, 99),
    st.sampled_from(WEIGHTS),
    st.booleans(),
    st.integers(0, 5),
)
def test_dequantize_of_any_bytes_equals_reference(
    n: int, group: int, seed: int, weight: float, add: bool, shift: int
) -> None:
    check_dequantize(n, group, seed, weight, add, shift)


@pytest.mark.parametrize(
    ("n", "group"),
    [
        (8000, 40),
        (9001, 1000),
        (20_003, 1025),
        (20_003, 10_240),
        (140_001, 1 << 16),
        (70_001, 1 << 17),
    ],
)
def test_teams_and_pieces_of_many_turns(n: int, group: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    for seed in (0, 1):
        with running_on(Emulated(seed)):
            check_quantize(x, group, residual_for(x, 3), 3.0)
    check_dequantize(n, group, 1, 0.5, True, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("group", [600, 5000, 1 << 16])
def test_what_is_not_finite_poisons_one_group_only(group: int, bad: float) -> None:
    x = np.random.default_rng(1).standard_normal(2 * group + 7).astype(np.float32)
    x[group + group // 2] = bad
    check_quantize(x, group, residual_for(x, 2), 1.0)
