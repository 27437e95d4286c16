"""int8 and int4: the error of each element, and what a NaN spoils."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.codecs import Int4, Int8
from compressa.testing.codec_checks import decoded, encoded
from compressa.testing.inputs import generator


@settings(max_examples=40)
@given(
    bits=st.sampled_from([4, 8]),
    block=st.sampled_from([8, 10, 32, 256]),
    elems=st.integers(1, 300),
    seed=st.integers(0, 2**31),
    magnitude=st.sampled_from([1e-30, 1e-3, 1.0, 1e20]),
)
def test_error_is_at_most_half_a_scale(
    bits: int, block: int, elems: int, seed: int, magnitude: float
) -> None:
    codec = Int8(block=block) if bits == 8 else Int4(block=block)
    x = torch.randn(elems, generator=generator(seed)) * magnitude
    error = (decoded(codec, encoded(codec, x), elems).double() - x.double()).abs()
    for start in range(0, elems, block):
        part = slice(start, start + block)
        scale = float(x[part].abs().max()) / (2 ** (bits - 1) - 1)
        # Rounding in float32 of the scale and the product moves a tie by a few parts in 2^24.
        slack = float(x[part].abs().max()) * 2.0**-22
        assert float(error[part].max()) <= scale / 2 + slack


def test_nan_spoils_its_own_block_only() -> None:
    codec, x = Int8(block=32), torch.ones(96)
    x[33] = torch.nan
    out = decoded(codec, encoded(codec, x), 96)
    assert out[32:64].isnan().all()
    assert out[:32].isfinite().all()
    assert out[64:].isfinite().all()
