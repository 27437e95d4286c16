"""Digests: OpenSSL's SHA-256, for compiled code to call; it comes with Python's own `hashlib`."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

import numpy as np

from compressa.transports.lowered import _words as w
from compressa.transports.lowered._memory import address_of, words

_BLOCK_BYTES = 64
_INNER, _OUTER = 0x36, 0x5C
_WORK = 0

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
        for word, fill in ((w.M_INNER, _INNER), (w.M_OUTER, _OUTER), (w.M_WORK, _WORK)):
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


def authenticate(link: np.ndarray, keys: tuple[bytes, bytes]) -> tuple[StreamMac, StreamMac]:
    """Have every frame of a link checked by a MAC.

    Args:
        link: Its words.
        keys: Of what is sent, and of what comes.

    Returns:
        What makes them, to be kept as long as the link.
    """
    ours, theirs = (StreamMac(key) for key in keys)
    link[w.OUT_MAC], link[w.IN_MAC] = ours.address, theirs.address
    return ours, theirs
