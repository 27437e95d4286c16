"""The yardstick: a[i] = a[i] + b[i], the stream that a memory bus carries best.

Two reads and a write per element, 12 bytes, and nothing else: a write-only stream would read its
lines first, and a pure read leaves the bus's other direction idle. The work is shared among
threads exactly as kernels share theirs.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
from compressa.kernels.threads import over_slices

F32 = npt.NDArray[np.float32]

BYTES_PER_ELEM = 12


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _update(a: F32, b: F32) -> None:
    for i in range(a.size):
        a[i] = a[i] + b[i]


def update_in_place(a: F32, b: F32) -> None:
    """Add `b` to `a`, on the current thread's team."""
    over_slices(a.size, 16, lambda low, high: _update(a[low:high], b[low:high]))
