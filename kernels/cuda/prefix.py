"""Prefixes on a GPU; see :mod:`compressa.kernels.prefix`.

The prefix is a parameter of the kernel, so that nothing is copied to the GPU.
"""

from __future__ import annotations

import numpy as np

from .._arrays import U8
from ..prefix import LONGEST
from ._arguments import Arguments
from ._device import CTA, launch
from ._later import find_fault


def write_prefix(x: U8, prefix: bytes) -> None:
    launch("prefix", "write_prefix", 1, CTA, x, *_words(prefix))


def starts_with(x: U8, prefix: bytes) -> bool:
    return not find_fault("prefix", "find_difference", 1, CTA, x, *_words(prefix))


def _words(prefix: bytes) -> Arguments:
    """``int size``, and eight words of four bytes, the lowest first."""
    return np.int32(len(prefix)), *np.frombuffer(prefix.ljust(LONGEST, b"\0"), np.uint32)
