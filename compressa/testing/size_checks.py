"""Sizes beyond 2^31 elements: arithmetic of integers, without the memory."""

from __future__ import annotations

import math

from compressa.codecs.base import Bias, Biased, Codec, Contraction, Fixed
from compressa.compressor import Compressor, Granularity
from compressa.testing.memory import require

_EDGES = (1 << 31, 1 << 32)
LARGE = (*(edge + more for edge in _EDGES for more in (-1, 0, 1)), 10**11 + 7)
_LEAST = (1 << 31, 1 << 34)
_OVERHEAD_BYTES = 64  # a header of its own, and rounding up
_SMALLEST_BYTES = 4096  # of a chunk or a table, even for one element
_ODD = (0, 1, 7, 97, 1009)


def check_payload_bytes(compressor: Compressor) -> None:
    """Sizes of payloads are whole numbers that grow as gradients do, beyond 2^31 elements too."""
    name = compressor.name
    for elems in (1, 97, 1 << 20, *LARGE):
        size = compressor.payload_bytes((elems,))
        exact = type(size) is int
        require(exact, f"{name}: {elems} elements take {size!r} bytes, which is no whole number")
        # Sparse formats that are told to send everything may send as many indices as values.
        most = 8 * elems + _SMALLEST_BYTES
        sentence = f"{name}: {elems} elements take {size} bytes, in float32 {4 * elems}"
        require(0 <= size <= most, sentence)


def check_wire_bytes(codec: Codec) -> None:
    """Beyond 2^31 elements, `wire_bytes` goes on as it began, to the byte.

    Codecs that can be cut take as many bytes for every period of blocks. For the others, twice
    the elements take about twice the bytes: indices grow by a bit.
    """
    for elems in LARGE:
        bound = codec.bias(elems)
        sentence = f"{codec.name}: the error bound of {elems} elements is {bound}"
        require(_sensible(bound), sentence)
    if codec.granularity in (Granularity.ELEMENT, Granularity.BLOCK) and codec.size == Fixed():
        _check_periodic(codec)
        return
    for elems in LARGE:
        one, two = codec.wire_bytes(elems), codec.wire_bytes(2 * elems)
        sentence = f"{codec.name}: {elems} elements take {one} bytes, twice as many take {two}"
        require(1.9 * one - _OVERHEAD_BYTES <= two <= 2.2 * one + _OVERHEAD_BYTES, sentence)


def _check_periodic(codec: Codec) -> None:
    period = math.lcm(codec.block_elems, 64)
    each = codec.wire_bytes(2 * period) - codec.wire_bytes(period)
    for periods in (-(-least // period) for least in _LEAST):
        for rest in _ODD:
            elems = (periods + 1) * period + rest
            found, due = codec.wire_bytes(elems), codec.wire_bytes(period + rest) + periods * each
            sentence = (
                f"{codec.name}: {elems} elements take {found} bytes, and {due} at {each} bytes"
            )
            require(found == due, f"{sentence} for every {period} elements")


def _sensible(bound: Bias) -> bool:
    if isinstance(bound, Contraction):
        return 0.0 <= bound.delta <= 1.0
    if isinstance(bound, Biased):
        return bound.noise >= 0.0  # infinite: no bound is stated
    return 0.0 <= bound.omega < math.inf
