"""Prefixes on a GPU; see :mod:`compressa.kernels.prefix`.

What is due is a parameter of the kernel, so that nothing is copied to the GPU.
"""

from __future__ import annotations

import numpy as np

from .._arrays import U8
from ..prefix import LONGEST
from ._device import CTA
from ._later import find_fault


def starts_with(x: U8, prefix: bytes) -> bool:
    """See :func:`compressa.kernels.prefix.starts_with`."""
    words = np.frombuffer(prefix.ljust(LONGEST, b"\0"), np.uint32)
    return not find_fault("prefix", "find_difference", 1, CTA, x, np.int32(len(prefix)), *words)
