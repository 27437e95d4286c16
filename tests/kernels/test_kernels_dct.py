"""Cosine transforms: the bits of the reference everywhere, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import Array, alike, copied, odd, on_every_backend
from compressa.kernels import (
    ChunkForm,
    add_coefficients,
    are_positions,
    keep_coefficients,
    reference,
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
)

CHUNKS = (16, 32, 64)
DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
FORMS = tuple(
    ChunkForm(chunk=chunk, kept=kept)
    for chunk in CHUNKS
    for kept in (1, 3, chunk // 8, chunk // 2, chunk)
)
TILES = tuple(
    ChunkForm(chunk=chunk, kept=kept, columns=columns)
    for chunk, columns in ((16, 5), (16, 16), (16, 37), (32, 40), (64, 3), (64, 70))
    for kept in (1, 3, chunk // 2, chunk * chunk // 3, chunk * chunk)
)
forms = st.sampled_from((*FORMS, *TILES))
feedback = st.tuples(st.none() | st.integers(0, 99), st.sampled_from(SCALES))
MOST = (0, 1, 15, 16, 17, 63, 64, 65, 130, 257, 515)


def kept(
    function: Callable[..., None],
    x: np.ndarray,
    form: ChunkForm,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
    sent: str = "float32",
) -> tuple[Array, np.ndarray]:
    value_elems, position_bytes = form.sizes(x.size)
    values, positions = poisoned(value_elems, DTYPES[sent]), poisoned(position_bytes, np.uint8)
    function(x, values, positions, form=form, residual=residual, loss_scale=loss_scale)
    return values, positions


def decoded(values: Array, positions: np.ndarray, n: int, form: ChunkForm) -> F32:
    out = poisoned(n, np.float32)
    add_coefficients(values, positions, out, form=form)
    return out


def check_keep(
    x: Array,
    form: ChunkForm,
    residual: F32 | None = None,
    loss_scale: float = 1.0,
    sent: str = "float32",
    **how: Any,
) -> None:
    def run(kernels: Any) -> list[Array | None]:
        left = copied(residual)
        return [*kept(kernels.keep_coefficients, x, form, left, loss_scale, sent), left]

    alike("dct", run, reads=[x], **how)


@on_every_backend
@settings(max_examples=166)
@given(gradients(sizes=(*SIZES[:-1],)), kinds, forms, feedback)
def test_keep_equals_reference(
    x: F32, kind: str, form: ChunkForm, keep: tuple[int | None, float]
) -> None:
    residual, on_cpu = residual_for(x, keep[0]), kind == "float32"
    check_keep(as_kind(x, kind), form, residual, keep[1], on_cpu=on_cpu)


@on_every_backend
@settings(max_examples=60)
@given(gradients(sizes=SIZES[:-1]), st.sampled_from(KINDS[1:]), forms, feedback)
def test_values_of_16_bits_equal_reference(
    x: F32, sent: str, form: ChunkForm, keep: tuple[int | None, float]
) -> None:
    check_keep(x, form, residual_for(x, keep[0]), keep[1], sent)


@on_every_backend
@settings(max_examples=10)
@given(gradients(sizes=(1023, 1025, 1031, 2500)), forms)
def test_keep_of_more_than_a_tile_equals_reference(x: F32, form: ChunkForm) -> None:
    check_keep(x, form, residual_for(x, 1), 3.0)


@on_every_backend
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("seed", [None, 4])
def test_gradients_of_16_bits_equal_reference(kind: str, seed: int | None) -> None:
    wide = np.random.default_rng(1).standard_normal(257).astype(np.float32)
    form = ChunkForm(chunk=64, kept=8)
    check_keep(as_kind(wide, kind), form, residual_for(wide, seed), 3.0)


@on_every_backend
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_matrix_is_the_references(chunk: int) -> None:
    form = ChunkForm(chunk=chunk, kept=chunk)
    rows = 1024 // chunk
    for first in range(0, chunk, rows):
        x = np.zeros((rows, chunk), np.float32)
        x[np.arange(rows), (first + np.arange(rows)) % chunk] = 1.0
        check_keep(x.ravel(), form, np.zeros(x.size, np.float32))


@on_every_backend
def test_more_tiles_than_blocks_are_started() -> None:
    x = np.random.default_rng(0).standard_normal(17 * 1024 + 5).astype(np.float32)
    form = ChunkForm(chunk=64, kept=8)
    check_keep(x, form, residual_for(x, 1))
    check_add(x.size, form, 1, True)


@on_every_backend
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize(
    "form", [FORMS[1], FORMS[2], FORMS[13], TILES[1], *TILES[11:27:5]], ids=repr
)
def test_overflow_equals_reference(bad: float, form: ChunkForm) -> None:
    x = np.full(600, 1.0, np.float32)
    x[200] = bad
    check_keep(x, form, np.full(600, 0.01, np.float32))
    y = np.full(600, 3e38, np.float32)
    y[300] = bad
    check_keep(y, form, np.zeros(600, np.float32), 4.0)
    check_keep(y, form, np.full(600, 1e38, np.float32), 2.0**-3)


@on_every_backend
@pytest.mark.parametrize(("sent", "largest"), [("float16", 65504.0), ("bfloat16", 3.3895e38)])
@pytest.mark.parametrize("form", [FORMS[1], FORMS[13], TILES[1], TILES[16]], ids=repr)
def test_overflow_of_16_bits_equals_reference(form: ChunkForm, sent: str, largest: float) -> None:
    for most in (largest, largest * 1.0004, largest / 8, largest / 64):
        x = np.full(200, most, np.float32)
        x[50:60] = 1.0
        check_keep(x, form, np.full(200, 0.01, np.float32), 4.0, sent)


def positions_of(x: F32, form: ChunkForm) -> Array:
    """Positions as the reference chooses them."""
    with np.errstate(all="ignore"), reference():
        return kept(keep_coefficients, x, form)[1]


def check_add(
    n: int, form: ChunkForm, seed: int, add: bool, sent: str = "float32", **how: Any
) -> None:
    random = np.random.default_rng(seed)
    x = random.standard_normal(n).astype(np.float32)
    positions = positions_of(x, form)
    bits = np.dtype(DTYPES[sent]).itemsize * form.sizes(n)[0]
    values = random.integers(0, 256, bits, dtype=np.uint8).view(DTYPES[sent])

    def run(kernels: Any) -> list[F32]:
        out = x.copy()
        options: dict[str, Any] = {"form": form, "weight": -3.3, "add": add}
        kernels.add_coefficients(values, positions, out, **options)
        return [out]

    alike("dct", run, **how)


@on_every_backend
@given(
    st.sampled_from((*MOST, 1031)),
    forms,
    st.integers(0, 99),
    st.booleans(),
    st.sampled_from(KINDS),
)
def test_add_of_any_values_equals_reference(
    n: int, form: ChunkForm, seed: int, add: bool, sent: str
) -> None:
    check_add(n, form, seed, add, sent)


@on_every_backend
@given(forms, st.sampled_from((0, 1, 2, 4, 300)), st.integers(0, 999), st.sampled_from((0, 1, 20)))
def test_positions_are_judged_as_by_the_reference(
    form: ChunkForm, chunks: int, seed: int, flips: int
) -> None:
    random = np.random.default_rng(seed)
    some = positions_of(random.standard_normal(form.chunk).astype(np.float32), form)
    positions = np.tile(some[: form.position_bytes], chunks)
    if positions.size:
        flipped = random.integers(0, 8 * positions.size, flips)
        np.bitwise_xor.at(positions, flipped // 8, np.uint8(1) << (flipped % 8).astype(np.uint8))
    (right,) = alike("dct", lambda kernels: [kernels.are_positions(positions, form=form)])
    assert right or flips


@given(forms, st.integers(1, 4), st.integers(0, 999))
def test_nothing_is_added_at_positions_that_are_refused(
    form: ChunkForm, chunks: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x = random.standard_normal(chunks * form.chunk).astype(np.float32)
    positions = positions_of(x, form)
    np.bitwise_xor.at(
        positions, random.integers(0, positions.size, 20), np.uint8(1) << np.uint8(seed % 8)
    )
    out, values = np.ones(x.size, np.float32), np.ones(form.sizes(x.size)[0], np.float32)
    if not are_positions(positions, form=form):
        with pytest.raises(ValueError, match="different positions in order"):
            add_coefficients(values, positions, out, form=form)
        assert (out == 1).all()


@on_every_backend
@pytest.mark.parametrize("form", [*FORMS, *TILES], ids=repr)
def test_positions_that_repeat_or_stray_are_refused(form: ChunkForm) -> None:
    zeros = np.zeros(form.position_bytes, np.uint8)
    # k zeros in a stream are k times position 0; a bitmap of zeros names no position
    lone = form.kept == 1 and form.width == 8
    ones = zeros + np.uint8(255)  # k times the last position, and nothing but 1 in unused bits
    found = alike(
        "dct", lambda k: [k.are_positions(positions, form=form) for positions in (zeros, ones)]
    )
    assert found == [form.kept == 1, form.kept == form.tile_elems or lone]


@on_every_backend
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [FORMS[2], FORMS[12], TILES[2], *TILES[12:28:5]], ids=repr)
def test_addresses_may_be_odd_and_nothing_beside_the_arrays_is_written(
    form: ChunkForm, kind: str, shift: int
) -> None:
    n, inner = 701, slice(shift, -shift)
    value_elems, position_bytes = form.sizes(n)
    random = np.random.default_rng(shift)
    given_x, left, before = (random.standard_normal(n + 2 * shift).astype("f4") for _ in range(3))
    x = as_kind(given_x, kind)[inner]

    def run(kernels: Any) -> list[Array]:
        residual, out = left.copy(), before.copy()
        all_values, values = odd(poisoned(value_elems, np.float32), shift)
        all_positions, positions = odd(poisoned(position_bytes, np.uint8), shift)
        options: dict[str, Any] = {"residual": residual[inner], "loss_scale": 3.0}
        kernels.keep_coefficients(x, values, positions, form=form, **options)
        kernels.add_coefficients(values, positions, out[inner], form=form, weight=0.3, add=True)
        assert kernels.are_positions(positions, form=form)
        return [residual, out, all_values, all_positions]

    alike("dct", run)


@on_every_backend
@pytest.mark.parametrize("form", [FORMS[2], FORMS[12], TILES[12], TILES[18]], ids=repr)
def test_the_order_of_threads_does_not_matter(form: ChunkForm) -> None:
    x = np.random.default_rng(0).standard_normal(1900).astype(np.float32)
    x[1000] = np.nan
    check_keep(x, form, residual_for(x, 0), orders=range(4))
    check_add(x.size, form, 0, False, orders=range(4))


@pytest.mark.parametrize(
    ("chunk", "kept_elems", "width", "position_bytes"),
    [(64, 8, 6, 6), (64, 10, 6, 8), (64, 11, 0, 8), (64, 32, 0, 8), (16, 1, 4, 1)],
)
def test_positions_take_the_fewest_bytes(
    chunk: int, kept_elems: int, width: int, position_bytes: int
) -> None:
    form = ChunkForm(chunk=chunk, kept=kept_elems)
    assert (form.width, form.position_bytes) == (width, position_bytes)


@pytest.mark.parametrize(
    ("chunk", "kept_elems", "message"),
    [
        (8, 1, "power of two from 16 to 64"),
        (512, 1, "power of two from 16 to 64"),
        (48, 1, "power of two from 16 to 64"),
        (64, 0, "between 1 and 64"),
        (64, 65, "between 1 and 64"),
    ],
)
def test_impossible_forms_are_refused(chunk: int, kept_elems: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChunkForm(chunk=chunk, kept=kept_elems)


def test_positions_of_half_a_chunk_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 6"):
        are_positions(np.zeros(7, np.uint8), form=ChunkForm(chunk=64, kept=8))
