"""The CUDA kernel for prefixes, run on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels.cuda import prefix as kernel
from compressa.kernels.prefix import LONGEST
from compressa.kernels.reference import prefix as reference
from emulated_cuda import on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned, same_bits

pytestmark = on_emulated_cuda


@given(st.binary(max_size=LONGEST), st.integers(0, 17), st.data())
def test_prefixes_equal_reference(prefix: bytes, shift: int, data: st.DataObject) -> None:
    whole = np.frombuffer(bytes(shift) + prefix + b"rest", np.uint8).copy()
    x = whole[shift:]
    assert kernel.starts_with(x, prefix)
    at = data.draw(st.integers(0, x.size - 1))
    x[at] ^= 1 << data.draw(st.integers(0, 7))
    assert kernel.starts_with(x, prefix) == reference.starts_with(x, prefix) == (at >= len(prefix))


@given(st.binary(max_size=LONGEST), st.integers(0, 17))
def test_written_prefixes_equal_reference(prefix: bytes, shift: int) -> None:
    ours = poisoned(shift + len(prefix) + 5, np.uint8)
    specified = ours.copy()
    kernel.write_prefix(ours[shift:], prefix)
    reference.write_prefix(specified[shift:], prefix)
    assert same_bits(ours, specified)


@pytest.mark.parametrize("place", range(LONGEST))
def test_each_byte_counts(place: int) -> None:
    x = np.arange(LONGEST, dtype=np.uint8)
    prefix = x.tobytes()
    x[place] ^= 0x80
    assert not kernel.starts_with(x, prefix)
    assert kernel.starts_with(x, prefix[:place])
