"""Prefixes of NumPy arrays; see :mod:`compressa.kernels.prefix`."""

from __future__ import annotations

from .._arrays import U8


def write_prefix(x: U8, prefix: bytes) -> None:
    x.data[: len(prefix)] = prefix


def starts_with(x: U8, prefix: bytes) -> bool:
    return x[: len(prefix)].tobytes() == prefix
