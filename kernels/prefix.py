"""Whether bytes begin with what is due, as the header of a payload does."""

from __future__ import annotations

import numpy as np

from ._arrays import U8, check_array
from ._backends import backend

LONGEST = 32
"""Bytes of a prefix, at most."""


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
    if len(prefix) > LONGEST:
        raise ValueError(f"prefix must have at most {LONGEST} bytes, not {len(prefix)}")
    if x.size < len(prefix):
        return False
    return bool(backend("prefix", x).starts_with(x, prefix))
