"""Parts of varying length, one after the other in a GPU's memory: how long each says it is."""

from __future__ import annotations

from typing import Any

from .._arrays import U8
from ._arguments import i64
from ._device import CTA, launch


def list_parts(x: U8, first: int, told: Any) -> None:
    """Note of parts how long they are, and the number that each begins with; nothing is checked.

    A part lies behind 8 bytes, whose first four are its length, and is filled up to a multiple of
    8 bytes. Of what lies beyond the end, the bytes count as 0.

    Args:
        x: uint8[n], on a GPU.
        first: Where the first length is.
        told: int64[2 * parts], overwritten.
    """
    parts = i64(told.size // 2)
    launch("prefix", "list_parts", 1, CTA, x, i64(x.size), i64(first), parts, told)
