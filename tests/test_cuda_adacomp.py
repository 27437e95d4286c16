"""The CUDA kernels of AdaComp's selection, run on the CPU, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels.cuda import adacomp
from compressa.kernels.cuda._device import HOME, running_on
from compressa.kernels.reference import adacomp as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, KINDS, SCALES, as_kind, gradients, poisoned, residual_for, same_bits

pytestmark = on_emulated_cuda

Keep = tuple[int | None, float]
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
LARGER = (2047, 2049, 4099, 16385, 40_001)
BINS = (1, 2, 7, 50, 64, 129, 500, 2047, 2048, 2049, 5000, 40_000, 2**40)


def same(x: Any, bin_elems: int, room: int, keep: Keep = (3, 1.0)) -> bool:
    results = []
    for module in (adacomp, reference):
        residual = residual_for(x.astype(np.float32), keep[0])
        out = poisoned(room, np.uint32), poisoned(room, np.float32)
        with np.errstate(all="ignore"):
            count = module.select_adacomp(x, bin_elems, *out, residual=residual, scale=keep[1])
        results.append((np.array(count), *out, residual))
    return all(a is None or same_bits(a, b) for a, b in zip(*results, strict=True))


@given(
    gradients(), st.sampled_from(KINDS), st.sampled_from((1, 2, 7, 50, 500)), feedback, st.data()
)
def test_select_adacomp_equals_reference(
    x: F32, kind: str, bin_elems: int, keep: Keep, data: st.DataObject
) -> None:
    assert same(as_kind(x, kind), bin_elems, data.draw(st.integers(0, x.size)), keep)


@settings(max_examples=30)
@given(
    gradients(sizes=LARGER),
    st.sampled_from(KINDS),
    st.sampled_from(BINS),
    feedback,
    st.sampled_from((0.0, 0.001, 0.05, 1.0)),
)
def test_select_adacomp_of_more_than_a_stretch_equals_reference(
    x: F32, kind: str, bin_elems: int, keep: Keep, share: float
) -> None:
    assert same(as_kind(x, kind), bin_elems, int(share * x.size), keep)


@pytest.mark.parametrize("bin_elems", BINS)
def test_bins_of_any_size_equal_reference(bin_elems: int) -> None:
    x = np.random.default_rng(bin_elems).standard_normal(20_011).astype(np.float32)
    assert same(x, bin_elems, x.size)
    assert same(np.round(x), bin_elems, 400, (None, 3.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1234, -1])
@pytest.mark.parametrize("bin_elems", [50, 3000])
def test_one_value_that_is_not_finite_undoes_a_selection(
    bad: float, place: int, bin_elems: int
) -> None:
    x = np.random.default_rng(2).standard_normal(9003).astype(np.float32)
    x[place] = bad
    for room in (0, 1, 100):
        assert same(x, bin_elems, room)
        assert same(x, bin_elems, room, (None, 3.0))


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bin_elems", [50, 3000])
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    kind: str, shift: int, bin_elems: int
) -> None:
    inner = slice(shift, -shift)
    whole = as_kind(np.random.default_rng(shift).standard_normal(4099).astype(np.float32), kind)
    kept = np.random.default_rng(9).standard_normal(whole.size).astype(np.float32)
    given = poisoned(300, np.uint32), poisoned(300, np.float32), kept
    due = [array.copy() for array in given]
    for module, (indices, values, left) in ((adacomp, given), (reference, due)):
        module.select_adacomp(
            whole[inner], bin_elems, indices[inner], values[inner], residual=left[inner], scale=3.0
        )
    for array, expected in zip(given, due, strict=True):
        assert same_bits(array, expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(20_011).astype(np.float32)
    with running_on(Emulated(1000 * seed)):
        for bin_elems in (1, 7, 500, 6000):
            assert same(x, bin_elems, 700)
            assert same(np.round(x), bin_elems, 700, (None, 1.0))


def test_the_launcher_and_the_kernels_have_the_same_sizes() -> None:
    assert f"constexpr int STRETCH = {adacomp._STRETCH};" in (HOME / "adacomp.cu").read_text()
