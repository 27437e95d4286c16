"""topk: exactly the largest, ties to the lowest index, indices in the fewest bits."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.codecs import TopK
from compressa.codecs._sparse import IndexFormat
from compressa.errors import PayloadError
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import generator

FORMATS: tuple[IndexFormat, ...] = ("auto", "bits", "bitmap", "elias_fano")


def by_sorting(x: torch.Tensor, kept: int) -> torch.Tensor:
    """The specification: sort by magnitude, then by index."""
    order = sorted(range(x.numel()), key=lambda i: (-abs(x[i].item()), i))[:kept]
    out = torch.zeros_like(x)
    out[order] = x[order]
    return out


@settings(max_examples=60)
@given(
    elems=st.integers(1, 150),
    density=st.floats(0.001, 1.0),
    levels=st.sampled_from([1, 2, 5, 1000]),
    seed=st.integers(0, 2**31),
    indices=st.sampled_from(FORMATS),
)
def test_equals_a_sort_also_with_ties_in_every_format(
    elems: int, density: float, levels: int, seed: int, indices: IndexFormat
) -> None:
    codec = TopK(density=density, indices=indices)
    x = torch.randint(-levels, levels + 1, (elems,), generator=generator(seed)).float()
    out = decoded(codec, encoded(codec, x), elems)
    assert torch.equal(out, by_sorting(x, codec.kept(elems)))


@pytest.mark.parametrize("elems", [1, 2, 33, 1000, 4097])
@pytest.mark.parametrize("density", [0.001, 0.03, 0.04, 0.5])
def test_indices_take_the_fewest_bytes_of_all_formats(elems: int, density: float) -> None:
    kept = TopK(density=density).kept(elems)
    width = max(1, (elems - 1).bit_length())
    low_bits = (elems // kept).bit_length() - 1
    due = {
        "bits": math.ceil(kept * width / 8),
        "bitmap": math.ceil(elems / 8),
        "elias_fano": math.ceil(kept * low_bits / 8)
        + math.ceil((((elems - 1) >> low_bits) + kept) / 8),
    }
    for name, size in due.items():
        assert TopK(density=density, indices=name).wire_bytes(elems) == 4 * kept + size  # type: ignore[arg-type]
    assert TopK(density=density).wire_bytes(elems) == 4 * kept + min(due.values())


@pytest.mark.parametrize("density", [0.02, 0.3])
@pytest.mark.parametrize("indices", FORMATS)
def test_bad_indices_are_refused(indices: IndexFormat, density: float) -> None:
    codec, x = TopK(density=density, indices=indices), torch.randn(100, generator=generator(1))
    payload = encoded(codec, x)
    split = 4 * codec.kept(100)
    for value in (0x00, 0xFF):
        mutant = payload.clone()
        mutant[split:] = value
        with pytest.raises(PayloadError, match=r"topk: .*(indices|bitmap|high bits|bits set)"):
            codec.decode(mutant, torch.empty(100), DRAW)


def test_large_payloads_decode_to_what_was_encoded() -> None:
    codec, x = TopK(density=0.01), torch.randn(3_000_000, generator=generator(3))
    out = decoded(codec, encoded(codec, x), x.numel())
    threshold = x.abs().kthvalue(x.numel() - codec.kept(x.numel()) + 1).values
    assert torch.equal(out, torch.where(x.abs() >= threshold, x, 0.0))


@pytest.mark.parametrize("value_dtype", ["float16", "bfloat16"])
def test_what_a_narrow_value_loses_stays_in_the_residual(
    value_dtype: Literal["float16", "bfloat16"],
) -> None:
    codec, x = TopK(density=0.1, value_dtype=value_dtype), torch.randn(50, generator=generator(2))
    residual, payload = torch.zeros(50), torch.empty(codec.wire_bytes(50), dtype=torch.uint8)
    codec.encode_feedback(x, residual, payload, DRAW)
    out = decoded(codec, payload, 50)
    sent = out != 0
    assert int(sent.sum()) == 5
    assert residual[sent].abs().max() > 0
    assert torch.equal(out + residual, x)
