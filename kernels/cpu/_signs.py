"""Signs, packed in eight planes: bit j of byte i is element j * m + i, for m bytes."""

from __future__ import annotations

import numpy as np

from .._arrays import F32, U8
from ._jit import inlined, lean
from ._view import view

SIGN = np.uint32(1 << 31)


@lean
def sign_of(value: np.float32) -> np.uint32:
    """The highest bit, set for negative numbers: adding 0 turns -0 into +0."""
    return np.uint32(np.float32(value + np.float32(0)).view(np.uint32) & SIGN)


@inlined
def pack_whole(p: F32, bits: U8, low: int, high: int) -> None:
    """Bytes low to high of the signs of eight planes, all as long as ``bits``."""
    m = bits.size
    a, b = view(p, low, high), view(p, m + low, m + high)
    c, d = view(p, 2 * m + low, 2 * m + high), view(p, 3 * m + low, 3 * m + high)
    e, f = view(p, 4 * m + low, 4 * m + high), view(p, 5 * m + low, 5 * m + high)
    g, h = view(p, 6 * m + low, 6 * m + high), view(p, 7 * m + low, 7 * m + high)
    out = view(bits, low, high)
    for i in range(out.size):
        lower = sign_of(a[i]) >> np.uint32(31) | sign_of(b[i]) >> np.uint32(30)
        lower |= sign_of(c[i]) >> np.uint32(29) | sign_of(d[i]) >> np.uint32(28)
        upper = sign_of(e[i]) >> np.uint32(27) | sign_of(f[i]) >> np.uint32(26)
        upper |= sign_of(g[i]) >> np.uint32(25) | sign_of(h[i]) >> np.uint32(24)
        out[i] = np.uint8(lower | upper)


@lean
def pack_short(p: F32, bits: U8) -> None:
    """The same where the last plane is shorter."""
    for i in range(bits.size):
        packed = np.uint32(0)
        for j in range(8):
            if j * bits.size + i < p.size:
                packed |= np.uint32(sign_of(p[j * bits.size + i]) >> np.uint32(31 - j))
        bits[i] = np.uint8(packed)
