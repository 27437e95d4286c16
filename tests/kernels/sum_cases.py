"""Sums of several payloads: how many, of which bits, and what they are when added one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from compressa.kernels._numpy import put
from hypothesis import strategies as st
from kernel_cases import FINITE, poisoned

COUNTS = (1, 2, 3, 8, 9, 17)
WEIGHTS = (1.0, 0.25, -0.3)
DTYPES = (np.float32, np.float16, np.uint16)
counts, weights, dtypes = st.sampled_from(COUNTS), st.sampled_from(WEIGHTS), st.sampled_from(DTYPES)

Array = npt.NDArray[Any]


def any_bytes(random: np.random.Generator, size: int, shift: int = 0) -> Array:
    """Codes of any value, at an address that is odd by ``shift``."""
    return random.integers(0, 256, size + shift, dtype=np.uint8)[shift:]


def any_scales(random: np.random.Generator, size: int, shift: int = 0) -> Array:
    """Scales of moderate size, so that sums have digits to lose, and a few special ones."""
    scales = random.standard_normal(size + shift).astype(np.float32)
    scales[random.random(scales.size) < 0.1] = random.choice([*FINITE, np.nan, np.inf, -0.0])
    return scales[shift:]


def one_by_one(add: Callable[[int, Array], None], count: int, elems: int, dtype: Any) -> Array:
    """Zeros, what ``add(i, total)`` adds for each payload in order, and rounding in the end."""
    total, out = np.zeros(elems, np.float32), poisoned(elems, dtype)
    with np.errstate(all="ignore"):
        for i in range(count):
            add(i, total)
        put(total, out)
    return out
