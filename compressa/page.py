"""The page of one compressor, in Markdown: from its row, its facts and its docstrings.

`compressa compressors NAME` prints it; the documentation site has pictures beside the same words.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from compressa.compressors import Entry
from compressa.config.choices import choice_model, field_texts
from compressa.config.describe import bounds_text
from compressa.config.emit import settings_toml, toml_line
from compressa.facts import BUSIEST_OF, LIBRARY, RANKS, Facts

_SECTIONS = re.compile(r"^(?:Args|Attributes|Raises|Returns|Examples?|Yields):$", re.M)
_TOPICS = re.compile(r"(?:^|(?<=[.;])\s+)(Wire format|Wire|Bias|State|Feedback):", re.M)
_WIDTH = 100
_MARK = re.compile(r" (?=>|(?:[-+*#]|\d+[.)])(?: |$))")
_GLUE = "\0"
_RANK_COUNTS = " / ".join(map(str, BUSIEST_OF))
_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def page(entry: Entry, own: Facts, heading: str = "##") -> str:
    """Return all that is to be said about a compressor, as Markdown.

    Args:
        entry: Its row.
        own: Its facts.
        heading: What its title begins with.
    """
    parts = [
        f"{heading} {own.name}",
        own.summary,
        *docs(entry.compressor),
        listed("Hyper-parameters:", hyper_parameters(entry)),
        listed("At its defaults:", _fact_lines(own)),
        f"```toml\n{example_toml(entry)}```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def example_toml(entry: Entry) -> str:
    """Return the lines of TOML that choose a compressor, defaults written out."""
    name = entry.compressor.name
    chosen = choice_model(name, entry).model_validate({"name": name})
    return settings_toml({"compressor": chosen.model_dump(mode="json")})


def hyper_parameters(entry: Entry) -> Iterator[str]:
    """Yield a line of Markdown for each: its name and default, what it may be, what it means."""
    fields = choice_model(entry.compressor.name, entry).model_fields
    for name, field in fields.items():
        if name != "name":
            allowed = ", ".join(
                filter(None, (type_text(field.annotation), bounds_text(field.metadata)))
            )
            text = _escaped(field.description or "")
            default = name if field.default is None else toml_line(name, field.default)
            yield f"`{default}`: {allowed}. {text}".strip()


def type_text(annotation: Any) -> str:
    """Return in words what a setting may be, bounds apart.

    Example:
        >>> type_text(Literal["float32", "float16"])
        '"float32" or "float16"'
    """
    if annotation in _TYPES:
        return _TYPES[annotation]
    inner = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return " or ".join(map(json.dumps, inner))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join("left out" if i is type(None) else type_text(i) for i in inner)
    if typing.get_origin(annotation) is tuple:
        return f"a list, each {type_text(inner[0])}"
    return type_text(inner[0]) if inner else getattr(annotation, "__name__", str(annotation))


def described(of: type) -> str:
    """Return a class's docstrings as Markdown: its module's, its own, and its settings'."""
    texts = field_texts(of.__doc__ or "")
    settings = (f"`{name}`: {_escaped(text)}" for name, text in texts.items())
    return "\n\n".join(filter(None, [*docs(of), listed("", settings)]))


def docs(of: type) -> Iterator[str]:
    """Yield what a class's module and the class say, in Markdown, up to settings and examples."""
    module = sys.modules.get(of.__module__)
    doc = (module and module.__doc__) or ""
    title = re.match(r"\S+: +", doc)  # as in "topk: the k elements of ..."
    yield _markdown(_sentence(doc[title.end() :] if title else doc))
    yield _markdown(inspect.cleandoc(of.__dict__.get("__doc__") or ""))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _markdown(doc: str) -> str:
    """Return the text of a docstring, up to its first section, as Markdown."""
    text = _TOPICS.sub(r"\n\n**\1:**", _SECTIONS.split(doc)[0])
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", text.strip("\n")) if part)


def _paragraph(text: str) -> str:
    """Fill a paragraph; formulas and lists stay as they are."""
    if text.startswith(("    ", "- ")):
        return text.rstrip()
    return _filled(_escaped(" ".join(text.split())))


def _filled(text: str, indent: str = "") -> str:
    """Break lines, but never before what would begin a list or a quotation there."""
    filled = textwrap.fill(
        _MARK.sub(_GLUE, text),
        _WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(_GLUE, " ")


def _escaped(line: str) -> str:
    """Keep Markdown from reading products and comparisons as emphasis and as tags."""
    return re.sub(r"(?<=[^\s*])\*(?=[^\s*])|<(?=[A-Za-z/])", r"\\\g<0>", line)


def listed(title: str, lines: Iterable[str]) -> str:
    """Return a list with a title; nothing if there are no lines."""
    listed = "\n".join(_filled(f"- {line}", "  ") for line in lines)
    return f"{title}\n\n{listed}".lstrip() if listed else ""


def _fact_lines(own: Facts) -> Iterator[str]:
    least = "" if own.exact_size is not False else "at least "
    yield f"Ratio: {least}{own.ratio:.1f}."
    yield f"Dense ring over the busiest of {_RANK_COUNTS} ranks: {least}{own.busiest_text}."
    held = f", {own.range_text}" if own.range_text else ""
    yield f"Error: {own.bias_text}{held}. Feedback: {own.feedback}."
    yield f"State: {own.state_bytes:.3g} bytes per element and rank."
    yield f"Exchange on {RANKS} ranks: {own.exchange}. Summable: {own.summable_text}."
    if own.wire_id is not None:
        yield f"Wire id: {own.wire_id}."
    if own.paper:
        yield f"Paper: {own.paper}."
    if own.source != LIBRARY:
        yield f"From: {own.source}."
