"""Chunks: what comes over several connections comes in any order, each chunk of a message once."""

from __future__ import annotations

from compressa.kernels.cpu._jit import lean_nested

from . import _words as w
from ._memory import peek, poke, smaller

_WORD, _BITS = 8, 64


@lean_nested
def bitmap_words(loop: int, total: int) -> int:
    """Return how many words have a bit for each chunk of a message."""
    chunk_bytes = peek(loop, w.CHUNK_BYTES)
    chunks = (total + chunk_bytes - 1) // chunk_bytes
    return (chunks + _BITS - 1) // _BITS


@lean_nested
def forget_chunks(loop: int, bitmap: int, total: int) -> None:
    """Note that no chunk has come."""
    for i in range(bitmap_words(loop, total)):
        poke(bitmap, i, 0)


@lean_nested
def is_new_chunk(loop: int, bitmap: int, total: int, offset: int, count: int) -> bool:
    """Whether a frame is a chunk that has not come; it is noted."""
    chunk_bytes = peek(loop, w.CHUNK_BYTES)
    chunk = offset // chunk_bytes
    if offset != chunk * chunk_bytes or count != smaller(chunk_bytes, total - offset):
        return False
    word, bit = peek(bitmap, chunk // _BITS), 1 << (chunk % _BITS)
    poke(bitmap, chunk // _BITS, word | bit)
    return word & bit == 0


@lean_nested
def early_bitmap(early: int) -> int:
    """Return where the bits of an early message are."""
    words = (peek(early, w.E_BYTES) + _WORD - 1) // _WORD
    return early + _WORD * (w.EARLY_WORDS + words)
