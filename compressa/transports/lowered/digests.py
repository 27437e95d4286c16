"""Digests: OpenSSL's SHA-256, for compiled code to call; it comes with Python's own `hashlib`."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

import numpy as np

from compressa.transports.checks import Keys
from compressa.transports.lowered import _words as w
from compressa.transports.lowered._memory import address_of, words

_BLOCK_BYTES = 64
_INNER, _OUTER = 0x36, 0x5C

_DECLARED: dict[str, tuple[Any, list[Any]]] = {
    "EVP_sha256": (ctypes.c_void_p, []),
    "EVP_MD_CTX_new": (ctypes.c_void_p, []),
    "EVP_MD_CTX_free": (None, [ctypes.c_void_p]),
    "EVP_MD_CTX_copy_ex": (ctypes.c_int, [ctypes.c_void_p] * 2),
    "EVP_DigestInit_ex": (ctypes.c_int, [ctypes.c_void_p] * 3),
    "EVP_DigestUpdate": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]),
    "EVP_DigestFinal_ex": (ctypes.c_int, [ctypes.c_void_p] * 3),
}


@cache
def openssl() -> dict[str, Any] | None:
    """Return OpenSSL's functions by name; None where Python was built without any in reach."""
    try:
        import _hashlib

        library = ctypes.CDLL(getattr(_hashlib, "__file__", None))
        found = {name: getattr(library, name) for name in _DECLARED}
    except (ImportError, OSError, AttributeError):
        return None
    for name, (result, arguments) in _DECLARED.items():
        found[name].restype, found[name].argtypes = result, arguments
    return found


class StreamMac:
    """The MAC of one end of one stream, as `compressa.transports.checks.Mac` defines it.

    Args:
        key: Of the stream, 32 bytes.

    Attributes:
        address: Of its block; see `_macs.check_of`.

    Raises:
        MemoryError: OpenSSL has no room for it.
    """

    def __init__(self, key: bytes) -> None:
        functions = openssl()
        assert functions is not None, "who has no OpenSSL lowers nothing"
        self._block = words(w.MAC_WORDS)
        self.address = address_of(self._block)
        self._block[w.M_WORK] = self._hash(functions, b"")
        for word, fill in ((w.M_INNER, _INNER), (w.M_OUTER, _OUTER)):
            pad = bytes(byte ^ fill for byte in key.ljust(_BLOCK_BYTES, b"\0"))
            self._block[word] = self._hash(functions, pad)
        for word, name in (
            (w.M_COPY, "EVP_MD_CTX_copy_ex"),
            (w.M_UPDATE, "EVP_DigestUpdate"),
            (w.M_FINAL, "EVP_DigestFinal_ex"),
        ):
            self._block[word] = ctypes.cast(functions[name], ctypes.c_void_p).value

    def _hash(self, functions: dict[str, Any], start: bytes) -> int:
        """Return a hash that has begun with some bytes, and is freed with this object."""
        context = functions["EVP_MD_CTX_new"]()
        if not context:
            raise MemoryError("OpenSSL")
        freed = weakref.finalize(self, functions["EVP_MD_CTX_free"], context)
        freed.atexit = False  # a thread may be in compiled code until the process ends
        begun = functions["EVP_DigestInit_ex"](context, functions["EVP_sha256"](), None)
        if begun != 1 or functions["EVP_DigestUpdate"](context, start, len(start)) != 1:
            raise MemoryError("OpenSSL")
        return int(context)


def authenticate(rows: np.ndarray, keys: Keys, number: int) -> list[StreamMac]:
    """Have every frame of a loop's links checked by a MAC.

    Args:
        rows: int64 (links, `LINK_WORDS`), those to one peer side by side.
        keys: Of this rank.
        number: Of the first link to each peer among the connections of the two.

    Returns:
        What makes them, to be kept as long as the links.
    """
    made, own = [], dict.fromkeys(rows[:, w.PEER].tolist(), number)
    for row in rows:
        peer = int(row[w.PEER])
        ours, theirs = (StreamMac(key) for key in keys.of_streams(peer, own[peer]))
        row[w.OUT_MAC], row[w.IN_MAC] = ours.address, theirs.address
        made += [ours, theirs]
        own[peer] += 1
    return made
