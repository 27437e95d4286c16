"""Places: where the values of a program lie, in one memory or in several.

Gradients of a unit lie where DDP has put them. A message is of the values in their own order, so
what a frame holds may lie in several places, which a table tells of: how many there are, of each
where it begins among the values and its address, and where the last one ends, all in bytes.
"""

from __future__ import annotations

from compressa.collectives.lowering import VALUES
from compressa.kernels.cpu._jit import lean_nested

from . import _words as w
from ._adds import add, divide
from ._memory import copy_bytes, peek, smaller

_EVERYTHING = 1 << 62
_FIRST, _PLACE_WORDS = 1, 2


@lean_nested
def _place_of(places: int, offset: int) -> int:
    """Return the number of the place that has a byte of the values."""
    low, high = 0, peek(places, 0)
    while high - low > 1:
        middle = (low + high) >> 1
        if peek(places, _FIRST + _PLACE_WORDS * middle) <= offset:
            low = middle
        else:
            high = middle
    return low


@lean_nested
def address(program: int, region: int, offset: int) -> int:
    """Return where a byte of the values, or of the memory for what comes in, lies."""
    places = peek(program, w.PLACES)
    if region != VALUES or places == 0:
        return peek(program, w.BASE + region) + offset
    word = _FIRST + _PLACE_WORDS * _place_of(places, offset)
    return peek(places, word + 1) + offset - peek(places, word)


@lean_nested
def bytes_behind(program: int, region: int, offset: int) -> int:
    """Return how many bytes lie side by side from one on; no fewer than there are."""
    places = peek(program, w.PLACES)
    if region != VALUES or places == 0:
        return _EVERYTHING
    return peek(places, _FIRST + _PLACE_WORDS * (_place_of(places, offset) + 1)) - offset


@lean_nested
def address_or(program: int, region: int, offset: int, count: int, beside: int) -> int:
    """Return where so many bytes lie, if they lie side by side; else another address."""
    if bytes_behind(program, region, offset) < count:
        return beside
    return address(program, region, offset)


@lean_nested
def gather(program: int, region: int, offset: int, count: int, to: int) -> None:
    """Copy values to one place."""
    end = offset + count
    while offset < end:
        part = smaller(bytes_behind(program, region, offset), end - offset)
        copy_bytes(to, address(program, region, offset), part)
        offset, to = offset + part, to + part


@lean_nested
def scatter(program: int, region: int, offset: int, count: int, source: int) -> None:
    """Copy values from one place to where they belong."""
    end = offset + count
    while offset < end:
        part = smaller(bytes_behind(program, region, offset), end - offset)
        copy_bytes(address(program, region, offset), source, part)
        offset, source = offset + part, source + part


@lean_nested
def add_to(program: int, region: int, offset: int, count: int, source: int) -> None:
    """Add what lies in one place to values where they are."""
    end, dtype = offset + count, peek(program, w.DTYPE)
    while offset < end:
        part = smaller(bytes_behind(program, region, offset), end - offset)
        add(dtype, address(program, region, offset), source, part)
        offset, source = offset + part, source + part


@lean_nested
def divide_all(program: int, offset: int, count: int) -> None:
    """Divide values where they are by the program's divisor."""
    end, dtype, divisor = offset + count, peek(program, w.DTYPE), peek(program, w.DIVISOR)
    while offset < end:
        part = smaller(bytes_behind(program, VALUES, offset), end - offset)
        divide(dtype, address(program, VALUES, offset), part, divisor)
        offset += part
