"""What all sums of several payloads are checked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._arrays import Gradient, check_array


def check_sum(out: Gradient, *arrays: Sequence[object] | None) -> None:
    """Refuse a sum's ``out``, or payloads of which some lack an array.

    Args:
        out: float32, float16, or uint16 for bfloat16.
        arrays: One array of each payload, for each array that a payload has; None for one that
            none of them has.

    Raises:
        TypeError: The dtype is another one.
        ValueError: The layout is wrong, or one array comes more often than another.
    """
    if out.dtype not in (np.float32, np.float16, np.uint16):
        raise TypeError(f"out must be float32, float16, or bfloat16 as uint16, not {out.dtype}")
    check_array("out", out, out.dtype, writable=True)
    counts = [len(column) for column in arrays if column is not None]
    if len(set(counts)) > 1:
        raise ValueError(f"each payload has one of each array, but there are {counts} of them")
