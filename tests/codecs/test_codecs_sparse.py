"""Sparse codecs of bounded size: hostile counts and lengths, and room for the most."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compressa.codecs import DGC, AdaComp, SIDCo, Threshold
from compressa.codecs._counted import BoundedSparse
from compressa.codecs._sparse import IndexFormat, SparseForm, ValueDtype
from compressa.errors import PayloadError
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import generator

CODECS = [
    DGC(density=0.05),
    SIDCo(density=0.05),
    Threshold(threshold=0.1),
    Threshold(threshold=2.0, unit="rms", value_dtype="bfloat16"),
    AdaComp(bin_elems=50),
]
FORMATS = st.sampled_from(("auto", "bits", "bitmap", "elias_fano"))
DTYPES = st.sampled_from(("float32", "float16", "bfloat16"))


@given(st.integers(0, 300) | st.integers(2**20, 2**20 + 9), FORMATS, DTYPES, st.data())
def test_more_values_never_take_fewer_bytes(
    n: int, indices: IndexFormat, dtype: ValueDtype, data: st.DataObject
) -> None:
    form = SparseForm("x", dtype, indices)
    k = data.draw(st.integers(0, n - 1)) if n else 0
    assert form.bytes(k, n) <= form.bytes(min(k + 1, n), n)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("elems", [1, 7, 1009])
def test_what_is_sent_is_of_the_gradient(codec: BoundedSparse, elems: int) -> None:
    for x in (torch.randn(elems, generator=generator(elems)), torch.zeros(elems)):
        payload = encoded(codec, x)
        out = decoded(codec, payload, elems)
        count = struct.unpack("<I", bytes(payload[:4].tolist()))[0]
        assert int((out != 0).sum()) == count <= codec.most(elems)
        sent = out != 0
        assert torch.allclose(out[sent], x[sent], rtol=codec.form.rounding, atol=0)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_one_nan_stands_for_a_scope_that_is_not_finite(codec: BoundedSparse) -> None:
    x = torch.randn(500, generator=generator(1))
    x[123] = -torch.inf
    out = decoded(codec, encoded(codec, x), 500)
    assert out[0].isnan()
    assert not out[1:].any()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("count", [1, 1000, 0xFFFFFFFF])
def test_counts_that_do_not_fit_are_refused(codec: BoundedSparse, count: int) -> None:
    payload = encoded(codec, torch.randn(1000, generator=generator(2)))
    payload[:4] = torch.tensor(list(struct.pack("<I", count)), dtype=torch.uint8)
    out = torch.full((1000,), 7.0)
    with pytest.raises(PayloadError, match=rf"{codec.name}: .*(can be sent|bytes, \d+ came)"):
        codec.decode(payload, out, DRAW)
    assert (out == 7.0).all()


@pytest.mark.parametrize("length", [0, 3, 4, 5])
def test_short_payloads_are_refused(length: int) -> None:
    codec = DGC(density=0.05)
    payload = encoded(codec, torch.randn(1000, generator=generator(2)))[:length]
    with pytest.raises(PayloadError, match="dgc: "):
        codec.check(payload, 1000)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_is_not_sent_is_sent_in_the_end(codec: BoundedSparse) -> None:
    # The same gradient again and again: its mean arrives, whatever each step leaves out.
    x, elems, steps = torch.randn(400, generator=generator(3)), 400, 600
    residual, total = torch.zeros(elems), torch.zeros(elems)
    payload = torch.empty(codec.wire_bytes(elems), dtype=torch.uint8)
    for _ in range(steps):
        length = codec.encode_feedback(x, residual, payload, DRAW)
        codec.decode_add(payload[:length], total, 1.0, DRAW)
    # What is left is what a few hundred steps gave, however many there were.
    assert torch.allclose(total + residual, steps * x, rtol=1e-4, atol=0.1)
    assert float(residual.norm() / x.norm()) < 300
