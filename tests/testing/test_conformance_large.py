"""More than 2^31 elements: offsets and indices of 64 bits, in addresses without memory.

Arrays that are scattered to are reserved, and take memory only where they are written. Arrays
that are read or written from end to end are folded: all parts are the same 4 MiB.
"""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import torch
from _pages import Folded, reserved
from compressa.kernels import (
    Form,
    block_count,
    dequantize_blockwise,
    quantize_blockwise,
    random_words,
    reference,
    return_unsent,
    scatter_add,
    sign_bytes,
    sign_dequantize,
    sign_quantize,
)

from compressa.aggregators.shards import cut_shards
from compressa.codecs import Int8, RandomK, TopK
from compressa.collectives.accumulator import Span
from compressa.engine.units.units import UnitSizes, build_units
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.testing.codec_checks import DRAW

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="folds memory as Linux can")

LARGE = (1 << 31) + 1024  # whole blocks
FOLD = 1 << 20  # elements of float32 in a fold
LONGEST = 225  # the index of a fold's largest element


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    """2^31 and some elements; every fold is the same, and holds one element that stands out."""
    folded = Folded(LARGE, torch.float32)
    folded.fold.normal_(generator=torch.Generator().manual_seed(3)).clamp_(-4.0, 4.0)
    folded.fold[LONGEST] = -5.0
    return folded.tensor


def test_top_k_finds_and_scatters_elements_beyond_2_31(x: torch.Tensor) -> None:
    folds = -(-LARGE // FOLD)
    codec = TopK(density=folds / LARGE)
    payload = torch.zeros(codec.wire_bytes(LARGE), dtype=torch.uint8)
    assert codec.encode(x, payload, DRAW) == payload.numel()
    out = reserved(LARGE, torch.float32)
    codec.decode_add(payload, out, 2.0, DRAW)
    indices = torch.arange(folds) * FOLD + LONGEST
    assert int(indices[-1]) > 2**31
    assert bool((out[indices] == -10.0).all())
    assert not out[indices + 1].any()


def test_random_k_scatters_beyond_2_31() -> None:
    elems = 3 << 30
    codec = RandomK(density=1000 / elems)
    values = torch.arange(1.0, 1001.0)
    out = reserved(elems, torch.float32)
    codec.decode_add(values.view(torch.uint8), out, 1.0, DRAW)
    indices = codec._indices(elems, DRAW, values.numpy())
    assert int(indices[-1]) > 2**31
    assert torch.equal(out[indices], values)


def test_scatters_reach_the_last_index_of_32_bits() -> None:
    out = reserved(1 << 32, torch.float32).numpy()
    indices = np.array([0, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    values = np.array([1, 2, 3, 4], np.float32)
    scatter_add(indices, values, out)
    assert out[indices].tolist() == values.tolist()
    return_unsent(out, indices, 2 * values, values)
    assert out[indices].tolist() == (2 * values).tolist()
    assert not out[2**31 - 1024 : 2**31 - 1].any()


def test_blocks_beyond_2_31_are_those_of_the_first_fold(x: torch.Tensor) -> None:
    form = Form(bits=8, block=256)
    codes = Folded(form.code_bytes(LARGE), torch.uint8)
    scales, out = (Folded(n, torch.float32) for n in (block_count(LARGE, 256), LARGE))
    arrays = [part.tensor.numpy() for part in (codes, scales, out)]
    quantize_blockwise(x.numpy(), *arrays[:2], form=form)
    dequantize_blockwise(*arrays, form=form)

    due = np.zeros(FOLD, np.uint8), np.zeros(FOLD // 256, np.float32), np.zeros(FOLD, np.float32)
    quantize_blockwise(x[:FOLD].numpy(), *due[:2], form=form)
    dequantize_blockwise(*due, form=form)
    for folded, part in zip((codes, scales, out), due, strict=True):
        assert repeats(folded, part)
        folded.close()


def test_signs_beyond_2_31_are_those_of_the_first_fold(x: torch.Tensor) -> None:
    bits = Folded(sign_bytes(LARGE, 1024), torch.uint8)
    scales, out = (Folded(n, torch.float32) for n in (block_count(LARGE, 1024), LARGE))
    arrays = [part.tensor.numpy() for part in (bits, scales, out)]
    sign_quantize(x.numpy(), *arrays[:2], block=1024)
    sign_dequantize(*arrays, block=1024)

    due = (
        np.zeros(FOLD // 8, np.uint8),
        np.zeros(FOLD // 1024, np.float32),
        np.zeros(FOLD, np.float32),
    )
    sign_quantize(x[:FOLD].numpy(), *due[:2], block=1024)
    sign_dequantize(*due, block=1024)
    for folded, part in zip((bits, scales, out), due, strict=True):
        assert repeats(folded, part)
        folded.close()


def repeats(folded: Folded, part: np.ndarray) -> bool:
    """Whether a fold is one part after the other."""
    return bool((folded.fold.numpy().reshape(-1, part.size) == part).all())


@pytest.mark.parametrize("start", [2**32 - 2, 2**34 - 2, 2**40 + 3])
def test_random_words_go_on_where_an_element_s_number_leaves_32_bits(start: int) -> None:
    own, due = np.zeros(9, np.uint32), np.zeros(9, np.uint32)
    where = {"seed": 1, "stream": 2, "step": 3, "parameter": 4}
    random_words(own, **where, start=start)
    with reference():
        random_words(due, **where, start=start)
    assert (own == due).all()
    low = np.zeros(5, np.uint32)
    random_words(low, **where, start=(start + 4) % 2**32)
    assert (own[4:] != low).any()


def test_units_and_shards_tile_a_parameter_of_2_33_elements() -> None:
    huge = ParameterInfo(0, "huge", (1 << 17, (1 << 16) + 1))
    units = build_units([huge], {"huge": Int8()}, UnitSizes(1 << 30, 1, 1 << 30))
    tile([segment for unit in units for segment in unit.layout.segments], huge)
    shards = cut_shards(Layout(0, (Segment(huge, 0, huge.elems),)), 7, 256)
    tile([scope.segment for scopes in shards for scope in scopes], huge)
    assert all(scope.start == scope.segment.start for scopes in shards for scope in scopes)


def tile(segments: list[Segment], whole: ParameterInfo) -> None:
    """Require that segments cover a parameter once, in order, nearly equally."""
    edges = [0, *(segment.stop for segment in segments)]
    assert edges[-1] == whole.elems
    assert all(segment.start == edge for segment, edge in zip(segments, edges, strict=False))
    sizes = [b - a for a, b in itertools.pairwise(edges)]
    assert max(sizes) - min(sizes) <= 2 * 256


def test_dense_shards_tile_2_33_elements() -> None:
    spans = Span(0, (1 << 33) + 5).cut(7, 16)
    assert spans[0].start == 0
    assert spans[-1].stop == (1 << 33) + 5
    assert all(low.stop == high.start for low, high in itertools.pairwise(spans))
    sizes = [span.elems for span in spans]
    assert max(sizes) - min(sizes) <= 32
