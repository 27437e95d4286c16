"""Once warm, a step allocates nothing in proportion to the gradient."""

from __future__ import annotations

import pytest
from compressor_cases import with_feedback

from compressa.codecs import Codec
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.testing import check_allocations, check_codec_allocations

ROWS = {name: row.compressor() for name, row in COMPRESSORS.items()}
CODECS = {name: codec for name, codec in ROWS.items() if isinstance(codec, Codec)}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_codec_works_in_the_memory_that_it_is_given(codec: Codec) -> None:
    check_codec_allocations(codec)


@pytest.mark.parametrize("compressor", ROWS.values(), ids=ROWS)
def test_a_step_needs_no_fresh_memory(compressor: Compressor) -> None:
    for each in {compressor, with_feedback(compressor)}:
        check_allocations(each)
