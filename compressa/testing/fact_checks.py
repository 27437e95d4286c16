"""Declared facts: what a compressor says of itself is well-formed, and can be written down."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

from compressa.codecs.base import Bounded, Codec, Contraction, Fixed
from compressa.compressor import Compressor, Granularity
from compressa.compressors import COMPRESSORS, Entry
from compressa.config.choices import choice_model
from compressa.testing.codec_checks import DRAW
from compressa.testing.inputs import MODEL, generator
from compressa.testing.memory import require

_NAME = re.compile("[a-z][a-z0-9_]*")
_ELEMS = 1 << 20  # long enough to tell a bound's kind
_STEPS_AFTER = 3


def check_dataclass(compressor: Compressor) -> None:
    """Check that hyper-parameters are keyword-only, and that a copy is equal and may be a key.

    Raises:
        AssertionError: With what is not so.
    """
    name = type(compressor).__name__
    keywords = all(field.kw_only for field in dataclasses.fields(compressor) if field.init)
    require(keywords, f"{name}: hyper-parameters must be keyword-only")
    copy = dataclasses.replace(compressor)
    same = copy == compressor and hash(copy) == hash(compressor)
    require(same, f"{name}: a copy with the same hyper-parameters is not equal to it")
    named = isinstance(compressor.name, str) and bool(_NAME.fullmatch(compressor.name))
    require(named, f"{name}: its name is {compressor.name!r}, not a word in lower case")


def check_round_trips(compressor: Compressor) -> None:
    """What repr and a configuration say of it, makes the same compressor again."""
    name = compressor.name
    again = eval(repr(compressor), dict(_names(compressor)))  # our own repr, not outside input
    require(again == compressor, f"{name}: {compressor!r} evaluates to {again!r}")
    if any(isinstance(getattr(compressor, f.name), Compressor) for f in _settings(compressor)):
        return  # wrappers are sections of a configuration, not choices
    row = COMPRESSORS.get(name)
    entry = row if row and row.compressor is type(compressor) else Entry(type(compressor), name, "")
    model = choice_model(name, entry)
    values = {f.name: getattr(compressor, f.name) for f in _settings(compressor)}
    written = model.model_validate({"name": name, **values}).model_dump(mode="json")
    read = model.model_validate(written).build()
    require(read == compressor, f"{name}: a configuration with {written} makes {read!r}")


def check_facts(compressor: Compressor) -> None:
    """Granularity, blocks and steps are what the engine can work with.

    Raises:
        AssertionError: They are not; the message names the compressor and the fact.
    """
    name, granularity = compressor.name, compressor.granularity
    require(isinstance(granularity, Granularity), f"{name}: its granularity is {granularity!r}")
    block = compressor.block_elems
    require(type(block) is int and block >= 1, f"{name}: cuts on multiples of {block!r} elements")
    cuts = granularity is Granularity.BLOCK or block == 1
    require(cuts, f"{name}: has blocks of {block}, but granularity {granularity.value}")
    breakpoints = compressor.breakpoints
    ascending = all(a < b for a, b in zip((0, *breakpoints), breakpoints, strict=False))
    require(ascending, f"{name}: breakpoints {breakpoints} are not ascending steps after 0")
    for step in range(1, max(breakpoints, default=0) + _STEPS_AFTER):
        changes = compressor.at(step) != compressor.at(step - 1)
        known = step in breakpoints or not changes
        require(known, f"{name}: changes at step {step}, which is no breakpoint")
    for parameter in MODEL:
        once = compressor.for_parameter(parameter)
        sentence = f"{name}: for_parameter({parameter.name!r}) changes when it is asked twice"
        require(once.for_parameter(parameter) == once, sentence)


def check_codec_facts(codec: Codec) -> None:
    """Size, wire id and feedback are declared as the other parts take them."""
    name, wire_id = codec.name, codec.wire_id
    fits = type(wire_id) is int and 0 <= wire_id < 256
    require(fits, f"{name}: its wire id is {wire_id!r}, which is no byte")
    for row in COMPRESSORS.values():
        other = row.compressor
        if issubclass(other, Codec) and not isinstance(codec, other):
            sentence = f"{name}: its wire id {wire_id} is that of {other.name}"
            require(other.wire_id != wire_id, sentence)
    sized = isinstance(codec.size, Fixed | Bounded)
    require(sized, f"{name}: its size is {codec.size!r}, neither Fixed nor Bounded")
    contracts = isinstance(codec.bias(_ELEMS), Contraction)
    sentence = f"{name}: wants error feedback, which only a contraction can have"
    require(contracts or not codec.error_feedback, sentence)


def check_summable(codec: Codec) -> None:
    """If payloads may be summed, their mean decodes to the mean of what they decode to."""
    reduction = codec.reduce
    if reduction is None or not reduction.dtype.is_floating_point:
        return
    elems, ranks = 1009, 3
    payloads = torch.empty(ranks, codec.wire_bytes(elems), dtype=torch.uint8)
    outs = torch.empty(ranks, elems)
    for rank in range(ranks):
        draw = dataclasses.replace(DRAW, rank=rank)
        codec.encode(torch.randn(elems, generator=generator(rank)), payloads[rank], draw)
        codec.decode(payloads[rank], outs[rank], draw)
    values = payloads.view(reduction.dtype).div_(ranks)
    summed, mean = torch.empty(elems), outs.double().mean(dim=0)
    codec.decode(values.sum(dim=0).view(torch.uint8), summed, DRAW)
    rounding = 2 * ranks * torch.finfo(reduction.dtype).eps * float(outs.abs().max())
    off = float((summed.double() - mean).abs().max())
    sentence = f"{codec.name}: the mean of payloads is off by {off:.3g} from the mean of vectors"
    require(off <= rounding, sentence)


def _settings(compressor: Compressor) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(compressor) if field.init]


def _names(compressor: Compressor) -> Iterator[tuple[str, type]]:
    """Yield the classes that a repr of it names."""
    yield type(compressor).__name__, type(compressor)
    for field in _settings(compressor):
        value = getattr(compressor, field.name)
        if isinstance(value, Compressor):
            yield from _names(value)
        elif isinstance(value, type):
            yield value.__name__, value
        elif dataclasses.is_dataclass(value) or isinstance(value, Enum):
            yield type(value).__name__, type(value)
