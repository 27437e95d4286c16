"""Draws what a compressor puts on the wire: a payload's arrays, one code's bits, or its rounds.

Sizes are those that the codec states, so that a drawing cannot disagree with the code: parts that
do not add up to `wire_bytes` end the build.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compressa.aggregators.base import Round
from compressa.codecs import Codec, Fixed, TopK
from compressa.codecs._counted import BoundedSparse
from compressa.codecs._kernel import KernelCodec
from compressa.codecs._sparse import SparseForm
from compressa.facts import PARAMETER, RANKS, SHAPE
from website.charts import colour
from website.svg import element, figure, text, title

_WIDTH, _LEFT, _HEIGHT = 480.0, 4.0, 34.0
_LEAST = 78.0

ELEMS = PARAMETER.elems
_SIGNS = tuple((f"i + {j} m" if j else "i", 1) for j in range(8))

_NAMES = {
    "demo": ("coefficients", "indices"),
    "natural": ("exponents", "signs"),
    "onebit": ("scales", "signs"),
    "onebit_sgd": ("means", "signs"),
}
"""Names of arrays, where they are not scales and codes."""

_BITS: dict[str, Sequence[tuple[str, int]]] = {
    "none": (("mantissa", 23), ("exponent", 8), ("sign", 1)),
    "fp16": (("mantissa", 10), ("exponent", 5), ("sign", 1)),
    "bf16": (("mantissa", 7), ("exponent", 8), ("sign", 1)),
    "fp8": (("mantissa", 3), ("exponent", 4), ("sign", 1)),
    "int8": (("q of element i", 8),),
    "int4": (("element i", 4), ("element i + m", 4)),
    "int2": (("i", 2), ("i + m", 2), ("i + 2 m", 2), ("i + 3 m", 2)),
    "qsgd": (("element i", 4), ("element i + m", 4)),
    "terngrad": (("i", 2), ("i + m", 2), ("i + 2 m", 2), ("i + 3 m", 2)),
    "natural": _SIGNS,
    "onebit": _SIGNS,
    "onebit_sgd": _SIGNS,
}
"""What the bits of one value, or of one byte of several, are; the lowest first."""


class Part(NamedTuple):
    """One array of a payload."""

    name: str
    bytes: int


def parts_of(codec: Codec, elems: int = ELEMS) -> list[Part]:
    """Return a payload's arrays at so many elements; the longest payload, where lengths vary.

    Raises:
        ValueError: They do not add up to what the codec says of itself.
    """
    total = codec.wire_bytes(elems)
    parts = _arrays(codec, elems)
    if sum(part.bytes for part in parts) != total:
        raise ValueError(f"{codec.name}: {parts} are not the {total} bytes of its payload")
    return parts


def _arrays(codec: Codec, elems: int) -> list[Part]:
    total = codec.wire_bytes(elems)
    if isinstance(codec, BoundedSparse):
        return [Part("count", 4), *_sparse(codec.form, codec.most(elems), elems)]
    if isinstance(codec, TopK):
        return _sparse(codec.form, codec.kept(elems), elems)
    sizes = codec.arrays(elems) if isinstance(codec, KernelCodec) else (total,)
    if len(sizes) == 1:
        return [Part("values", total)]
    names = _NAMES.get(codec.name, ("scales", "codes"))
    return [Part(name, size) for name, size in zip(names, sizes, strict=True)]


def _sparse(form: SparseForm, kept: int, elems: int) -> list[Part]:
    values = (4 if form.lossless else 2) * kept
    return [Part("values", values), Part("indices", form.bytes(kept, elems) - values)]


def payload(codec: Codec) -> str:
    """Return the figure of a codec's payload, for a million elements."""
    parts = parts_of(codec)
    drawn = list(_boxes([(part.name, part.bytes) for part in parts]))
    height = 62.0
    if codec.name in _BITS:
        bits = _BITS[codec.name]
        width = sum(size for _, size in bits)
        what = f"one {'byte' if width == 8 else 'value'} of {parts[-1].name}, its highest bit first"
        drawn += [text(_LEFT, height + 18, what, class_="soft"), *_bits(bits, height + 26)]
        height += 80.0
    sizes = ", ".join(f"{part.name} {part.bytes:,} bytes" for part in parts)
    most = "" if isinstance(codec.size, Fixed) else " at most"
    caption = (
        f"The payload of {ELEMS:,} elements at the defaults, {codec.wire_bytes(ELEMS):,} bytes"
    )
    return figure(drawn, _WIDTH, height, f"Payload: {sizes}", f"{caption}{most}; little-endian.")


def rounds(of: Sequence[Round]) -> str:
    """Return the figure of the rounds in which ranks exchange what is no payload of one codec."""
    drawn = []
    for i, own in enumerate(of):
        y = 4.0 + i * (_HEIGHT + 14)
        what = f"{i + 1}. {own.verb.value.replace('_', '-')}"
        size = f"{'' if own.exact else 'at most '}{own.capacity_bytes:,} bytes"
        drawn.append(element("rect", x=_LEFT, y=y, width=_WIDTH - 8, height=_HEIGHT, class_="box"))
        drawn.append(text(_LEFT + 10, y + 22, what, class_="strong"))
        drawn.append(text(_LEFT + 190, y + 22, str(own.dtype).removeprefix("torch.")))
        drawn.append(text(_WIDTH - 14, y + 22, size, text_anchor="end"))
        if i:
            x = _LEFT + 20
            drawn.append(element("line", x1=x, x2=x, y1=y - 14, y2=y, class_="arrow"))
    caption = (
        f"What each of {RANKS} ranks gives in a step, for a matrix of {SHAPE[0]} x {SHAPE[1]}."
    )
    return figure(drawn, _WIDTH, len(of) * (_HEIGHT + 14), "Rounds of a step", caption)


def _boxes(parts: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Draw arrays side by side, as wide as they are long but for a least width."""
    total, room = sum(size for _, size in parts), _WIDTH - 2 * _LEFT - _LEAST * len(parts)
    x, offset = _LEFT, 0
    for i, (name, size) in enumerate(parts):
        width = _LEAST + room * size / total
        style = f"part s{i}"
        hint = title(f"{name}: {size:,} bytes from byte {offset:,}")
        yield element("rect", hint, x=x, y=4.0, width=width, height=_HEIGHT, class_=style)
        yield text(x + width / 2, 26, name, text_anchor="middle", class_="strong")
        yield text(x + 2, _HEIGHT + 18, f"{offset:,}", class_="soft")
        x, offset = x + width, offset + size
    yield text(x, _HEIGHT + 18, f"{offset:,}", text_anchor="end", class_="soft")


def _bits(bits: Sequence[tuple[str, int]], y: float) -> Iterator[str]:
    """Draw the bits of a value, the highest first."""
    width = (_WIDTH - 2 * _LEFT) / sum(size for _, size in bits)
    x = _LEFT
    for i, (name, size) in reversed(list(enumerate(bits))):
        wide = width * size
        style = f"part {colour(i)}"
        yield element(
            "rect", title(f"{name}: {size} bits"), x=x, y=y, width=wide, height=28.0, class_=style
        )
        if wide > 6.3 * len(name):
            yield text(x + wide / 2, y + 18, name, text_anchor="middle")
        yield text(x + wide / 2, y + 42, str(size), text_anchor="middle", class_="soft")
        x += wide
