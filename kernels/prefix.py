"""The first bytes of an array, such as the header of a payload: written, and compared."""

from __future__ import annotations

import numpy as np

from ._arrays import U8, check_array
from ._backends import backend

LONGEST = 32
"""Bytes of a prefix, at most."""


def write_prefix(x: U8, prefix: bytes) -> None:
    """Make the first bytes of ``x`` those of ``prefix``.

    On a GPU nothing is copied from the host's memory, so that it can be captured in a graph.

    Example:
        >>> import numpy as np
        >>> x = np.frombuffer(b"what and more", np.uint8).copy()
        >>> write_prefix(x, b"this")
        >>> x.tobytes()
        b'this and more'

    Args:
        x: uint8[n], at least as long as the prefix.
        prefix: At most `LONGEST` bytes.

    Raises:
        TypeError: The dtype is wrong.
        ValueError: The shape or the layout is wrong, or the prefix is too long.
    """
    check_array("x", x, np.uint8, writable=True)
    _check_length(prefix)
    if x.size < len(prefix):
        raise ValueError(f"x must have at least the {len(prefix)} bytes of prefix, not {x.size}")
    if kernel := backend("prefix", x):
        kernel.write_prefix(x, prefix)
        return
    for index, byte in enumerate(prefix):
        x[index] = byte


def starts_with(x: U8, prefix: bytes) -> bool:
    """Whether the first bytes of ``x`` are those of ``prefix``.

    On a GPU this waits for the answer, unless answers come later (`kernels.cuda.answers_later`).

    Example:
        >>> import numpy as np
        >>> x = np.frombuffer(b"magic and more", np.uint8)
        >>> starts_with(x, b"magic"), starts_with(x, b"tragic")
        (True, False)

    Args:
        x: uint8[n]; if it is shorter than the prefix, it does not begin with it.
        prefix: At most `LONGEST` bytes.

    Raises:
        TypeError: The dtype is wrong.
        ValueError: The shape or the layout is wrong, or the prefix is too long.
    """
    check_array("x", x, np.uint8)
    _check_length(prefix)
    if x.size < len(prefix):
        return False
    if kernel := backend("prefix", x):
        return bool(kernel.starts_with(x, prefix))
    return all(int(one) == due for one, due in zip(x, prefix, strict=False))


def _check_length(prefix: bytes) -> None:
    if len(prefix) > LONGEST:
        raise ValueError(f"prefix must have at most {LONGEST} bytes, not {len(prefix)}")
