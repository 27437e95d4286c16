"""Prefixes in NumPy; see :mod:`compressa.kernels.prefix`."""

from __future__ import annotations

from .._arrays import U8


def write_prefix(x: U8, prefix: bytes) -> None:
    """See :func:`compressa.kernels.prefix.write_prefix`."""
    for place, byte in enumerate(prefix):
        x[place] = byte


def starts_with(x: U8, prefix: bytes) -> bool:
    """See :func:`compressa.kernels.prefix.starts_with`."""
    return all(int(one) == due for one, due in zip(x, prefix, strict=False))
