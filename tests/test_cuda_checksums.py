"""The CUDA kernel for checksums, run on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
from compressa.kernels.cuda import checksums
from compressa.kernels.reference import checksums as reference
from emulated_cuda import on_emulated_cuda
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import SIZES

pytestmark = on_emulated_cuda


@given(st.sampled_from(SIZES), st.integers(0, 99), st.integers(0, 8))
def test_equals_reference_wherever_the_bytes_lie(size: int, seed: int, shift: int) -> None:
    whole = np.random.default_rng(seed).integers(0, 256, size + 16, np.uint8)
    data = whole[shift : shift + size]
    assert checksums.checksum(data) == reference.checksum(data)


def test_threads_take_more_than_one_turn() -> None:
    data = np.random.default_rng(0).integers(0, 256, 300_007, np.uint8)
    assert checksums.checksum(data) == reference.checksum(data)
