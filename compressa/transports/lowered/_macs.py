"""MACs in compiled code: HMAC-SHA256, by functions of OpenSSL that `digests` has found."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from compressa.kernels.cpu._jit import lean_nested
from compressa.kernels.cpu.checksums import checksum_of

from . import _words as w
from ._memory import number, peek, poke, u8_at

_WORD = 8
_FRONT_BYTES, _DIGEST_BYTES = 32, 32


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Call the C function at the first argument, an address, with the others; it returns an int."""
    kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * (len(arguments) - 1))
    return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])


@number
def _call(typing: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
    return types.int32(*[types.int64] * 4), _generate


@number
def _call_of_two(typing: Any, function: Any, a: Any, b: Any) -> Any:
    return types.int32(*[types.int64] * 3), _generate


@lean_nested
def check_of(mac: int, front: int, data: int, count: int) -> int:
    """Return the 64 bits that check a frame's data; see `compressa.transports.checks`.

    Args:
        mac: The block of a stream, which counts the frame; 0 for a checksum.
        front: Where bytes 0 to 31 of its header are.
        data: Where the data is.
        count: How many bytes.
    """
    if mac == 0:
        return int(np.int64(checksum_of(u8_at(data, count))))
    work, digest = peek(mac, w.M_WORK), mac + _WORD * w.M_DIGEST
    update, final = peek(mac, w.M_UPDATE), peek(mac, w.M_FINAL)
    right = _call_of_two(peek(mac, w.M_COPY), work, peek(mac, w.M_INNER))
    right &= _call(update, work, mac + _WORD * w.M_NUMBER, _WORD)
    right &= _call(update, work, front, _FRONT_BYTES)
    right &= _call(update, work, data, count)
    right &= _call(final, work, digest, 0)
    right &= _call_of_two(peek(mac, w.M_COPY), work, peek(mac, w.M_OUTER))
    right &= _call(update, work, digest, _DIGEST_BYTES)
    right &= _call(final, work, digest, 0)
    poke(mac, w.M_NUMBER, peek(mac, w.M_NUMBER) + 1)
    if right != 1:
        poke(mac, w.M_BROKEN, 1)
    return peek(digest, 0)


@lean_nested
def is_broken(mac: int) -> bool:
    """Whether OpenSSL has failed at it: what `check_of` returned is no MAC then."""
    return mac != 0 and peek(mac, w.M_BROKEN) != 0
