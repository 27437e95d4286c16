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


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_compressor_sends_no_more_than_the_gradient_by_default(name: str) -> None:
    assert COMPRESSORS[name].compressor().payload_bytes((1000, 1000)) <= 4 * 1_000_000
