"""Prefixes of NumPy arrays; see :mod:`compressa.kernels.prefix`."""

from __future__ import annotations

from .._arrays import U8


def write_prefix(x: U8, prefix: bytes) -> None:
    """See :func:`compressa.kernels.prefix.write_prefix`."""
    x.data[: len(prefix)] = prefix


def starts_with(x: U8, prefix: bytes) -> bool:
    """See :func:`compressa.kernels.prefix.starts_with`."""
    return x[: len(prefix)].tobytes() == prefix
