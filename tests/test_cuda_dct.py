"""The CUDA kernels of cosine transforms, run on the CPU, against the reference: bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compressa.kernels import ChunkForm
from compressa.kernels.cuda import dct
from compressa.kernels.cuda._device import running_on
from compressa.kernels.reference import dct as reference
from emulated_cuda import Emulated, on_emulated_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import F32, KINDS, SCALES, as_kind, gradients, poisoned, residual_for, same_bits

pytestmark = on_emulated_cuda

CHUNKS = (16, 32, 64)
FORMS = tuple(
    ChunkForm(chunk=chunk, kept=kept)
    for chunk in CHUNKS
    for kept in (1, 3, chunk // 8, chunk // 2, chunk)
)
TILES = tuple(
    ChunkForm(chunk=chunk, kept=kept, columns=columns)
    for chunk, columns in ((16, 5), (16, 37), (32, 40), (64, 70))
    for kept in (1, 3, chunk // 2, chunk * chunk // 3, chunk * chunk)
)
forms = st.sampled_from((*FORMS, *TILES))
MOST = (0, 1, 15, 16, 17, 63, 64, 65, 130, 257, 515)


def kept_alike(x: Any, form: ChunkForm, left: F32 | None, scale: float) -> bool:
    results = []
    for module in (dct, reference):
        value_elems, place_bytes = form.sizes(x.size)
        values, places = poisoned(value_elems, np.float32), poisoned(place_bytes, np.uint8)
        residual = None if left is None else left.copy()
        with np.errstate(all="ignore"):
            module.keep_coefficients(x, values, places, form=form, residual=residual, scale=scale)
        results.append((values, places, residual))
    return all(a is None or same_bits(a, b) for a, b in zip(*results, strict=True))


@given(
    gradients(sizes=MOST),
    st.sampled_from(KINDS),
    forms,
    st.none() | st.integers(0, 99),
    st.sampled_from(SCALES),
)
def test_keep_equals_reference(
    x: F32, kind: str, form: ChunkForm, seed: int | None, scale: float
) -> None:
    assert kept_alike(as_kind(x, kind), form, residual_for(x, seed), scale)


@settings(max_examples=10)
@given(gradients(sizes=(1023, 1025, 2500)), forms)
def test_keep_of_more_than_a_tile_equals_reference(x: F32, form: ChunkForm) -> None:
    assert kept_alike(x, form, residual_for(x, 1), 3.0)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_matrix_is_the_references(chunk: int) -> None:
    form = ChunkForm(chunk=chunk, kept=chunk)
    rows = 1024 // chunk
    for first in range(0, chunk, rows):
        x = np.zeros((rows, chunk), np.float32)
        x[np.arange(rows), (first + np.arange(rows)) % chunk] = 1.0
        assert kept_alike(x.ravel(), form, np.zeros(x.size, np.float32), 1.0)


def test_more_tiles_than_blocks_are_started() -> None:
    x = np.random.default_rng(0).standard_normal(17 * 1024 + 5).astype(np.float32)
    form = ChunkForm(chunk=64, kept=8)
    assert kept_alike(x, form, residual_for(x, 1), 1.0)
    assert decoded_alike(x.size, form, 1, True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("form", [FORMS[1], FORMS[2], FORMS[13], *TILES[1:17:5]], ids=repr)
def test_overflow_equals_reference(bad: float, form: ChunkForm) -> None:
    x = np.full(600, 1.0, np.float32)
    x[200] = bad
    assert kept_alike(x, form, np.full(600, 0.01, np.float32), 1.0)
    x[:] = 3e38
    x[300] = bad
    assert kept_alike(x, form, np.zeros(600, np.float32), 4.0)
    assert kept_alike(x, form, np.full(600, 1e38, np.float32), 2.0**-3)


def decoded_alike(n: int, form: ChunkForm, seed: int, add: bool) -> bool:
    random = np.random.default_rng(seed)
    value_elems, place_bytes = form.sizes(n)
    places = poisoned(place_bytes, np.uint8)
    x = random.standard_normal(n).astype(np.float32)
    reference.keep_coefficients(x, poisoned(value_elems, np.float32), places, form=form)
    values = random.integers(0, 2**32, value_elems, dtype=np.uint32).view(np.float32)
    results = []
    for module in (dct, reference):
        out = x.copy()
        with np.errstate(all="ignore"):
            module.add_coefficients(values, places, out, form=form, weight=-3.3, add=add)
        results.append(out)
    return same_bits(*results)


@given(st.sampled_from((*MOST, 1031)), forms, st.integers(0, 99), st.booleans())
def test_add_of_any_values_equals_reference(n: int, form: ChunkForm, seed: int, add: bool) -> None:
    assert decoded_alike(n, form, seed, add)


@given(forms, st.sampled_from((0, 1, 4, 300)), st.integers(0, 999), st.sampled_from((0, 1, 20)))
def test_places_are_judged_as_by_the_reference(
    form: ChunkForm, chunks: int, seed: int, flips: int
) -> None:
    random = np.random.default_rng(seed)
    value_elems, place_bytes = form.sizes(form.chunk)
    some = poisoned(place_bytes, np.uint8)
    x = random.standard_normal(form.chunk).astype(np.float32)
    reference.keep_coefficients(x, poisoned(value_elems, np.float32), some, form=form)
    places = np.tile(some[: form.place_bytes], chunks)
    if places.size:
        flipped = random.integers(0, 8 * places.size, flips)
        np.bitwise_xor.at(places, flipped // 8, np.uint8(1) << (flipped % 8).astype(np.uint8))
    assert dct.are_places(places, form=form) is reference.are_places(places, form=form)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [FORMS[2], FORMS[12], *TILES[2:18:5]], ids=repr)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    form: ChunkForm, kind: str, shift: int
) -> None:
    n, inner = 1301, slice(shift, -shift)
    value_elems, place_bytes = form.sizes(n)

    def arrays() -> list[Any]:
        random = np.random.default_rng(shift)
        made = [random.standard_normal(n + 2 * shift).astype(np.float32) for _ in range(3)]
        outputs = (value_elems, np.float32), (place_bytes, np.uint8)
        return [
            as_kind(made[0], kind),
            *made[1:],
            *(poisoned(s + 2 * shift, d) for s, d in outputs),
        ]

    results = arrays(), arrays()
    for module, whole in zip((dct, reference), results, strict=True):
        x, residual, out, values, places = (array[inner] for array in whole)
        with np.errstate(all="ignore"):
            module.keep_coefficients(x, values, places, form=form, residual=residual, scale=3.0)
            module.add_coefficients(values, places, out, form=form, weight=0.3, add=True)
        assert module.are_places(places, form=form)
    for ours, due in zip(*results, strict=True):
        assert same_bits(ours, due)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(1900).astype(np.float32)
    x[1000] = np.nan
    with running_on(Emulated(1000 * seed)):
        for form in (FORMS[2], FORMS[12], TILES[7], TILES[13]):
            assert kept_alike(x, form, residual_for(x, seed), 1.0)
            assert decoded_alike(x.size, form, seed, False)
