"""Every codec of the contract table holds what every codec owes."""

from __future__ import annotations

import pytest
from compressor_cases import CODECS

from compressa.codecs import Codec
from compressa.compressors import COMPRESSORS
from compressa.testing import check_codec


@pytest.mark.parametrize("codec", CODECS)
def test_codec_conforms(codec: Codec) -> None:
    check_codec(codec)


def test_wire_ids_are_distinct_and_fit_a_byte() -> None:
    ids = [
        row.compressor.wire_id for row in COMPRESSORS.values() if issubclass(row.compressor, Codec)
    ]
    assert len(set(ids)) == len(ids)
    assert all(0 <= wire_id < 256 for wire_id in ids)


@pytest.mark.parametrize("codec", CODECS)
def test_codec_is_smaller_than_float32_or_equal(codec: Codec) -> None:
    # Only a sparse codec that keeps everything may be larger: it sends a bitmap besides.
    elems = 100_000
    allowance = elems // 8 + 1 if codec.bias(elems) == type(codec.bias(elems))(1.0) else 0
    assert codec.wire_bytes(elems) <= 4 * elems + allowance
