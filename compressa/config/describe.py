"""Pydantic's errors in words that say what would be right."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from compressa.config.choices import CHOICES
from compressa.config.mistakes import MISTAKES, Mistake, Path, nearest, show
from compressa.config.model import Config
from compressa.config.strategies import STRATEGIES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_BOUNDS = {
    "gt": "greater than {}",
    "ge": "at least {}",
    "lt": "less than {}",
    "le": "at most {}",
    "multiple_of": "a multiple of {}",
}
_BRANCHES: Mapping[str | int, Mapping[str, type[BaseModel]]] = {
    "compressor": CHOICES,
    "strategy": STRATEGIES,
}
"""Settings that are told apart by name: what there is of each."""
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a table",
    "dict_type": "a table",
    "too_short": "a list of at least one",
}

_UNITS = {"_bits_per_s": "bits per second", "_bytes": "bytes", "_s": "seconds"}
"""What settings are in, by how their names end."""

_MEANT = {
    "error_feedback": 'write kind = "error" in [feedback]; if nothing is written there, each '
    "compressor that needs error feedback has it"
}
"""What to write instead of a setting's name that is not one, where the likeness misleads."""


def describe(error: ErrorDetails, raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes of one of pydantic's errors.

    Args:
        error: As `ValidationError.errors()` lists it.
        raw: What was validated.
    """
    path = _written_path(error["loc"], raw)
    if error["type"] == MISTAKES:
        for inner in error["ctx"]["mistakes"]:
            yield Mistake((*path, *inner.path), inner.text, inner.involves)
        return
    say = _SAY.get(error["type"], _say_type)
    yield Mistake(path, say(error))


def _written_path(loc: Path, raw: object) -> Path:
    """Return the keys that the user wrote: no union tags, no index into a lone value."""
    path: list[str | int] = []
    for before, part in zip(("", *loc), loc, strict=False):
        if part in _BRANCHES.get(before, ()):
            continue
        if isinstance(part, int) and not isinstance(raw, list | tuple):
            continue
        path.append(part)
        raw = _item(raw, part)
    return tuple(path)


def _item(raw: object, part: str | int) -> object:
    if isinstance(raw, Mapping):
        return raw.get(part)
    if isinstance(raw, list | tuple) and isinstance(part, int) and part < len(raw):
        return raw[part]
    return None


def _say_type(error: ErrorDetails) -> str:
    wanted = _WANTED.get(error["type"])
    if wanted is None:
        return error["msg"][:1].lower() + error["msg"][1:]
    unit = _unit(error["loc"]) if wanted.endswith("number") else ""
    tables = "; write [[rules]] above each rule" if _one_rule(error) else ""
    return f"must be {wanted}{unit and f' of {unit}'}, not {show(error['input'])}{tables}"


def _unit(loc: Path) -> str:
    key = next((part for part in reversed(loc) if isinstance(part, str)), "")
    return next((unit for end, unit in _UNITS.items() if key.endswith(end)), "")


def _one_rule(error: ErrorDetails) -> bool:
    return error["loc"] == ("rules",) and isinstance(error["input"], Mapping)


def _say_unknown_key(error: ErrorDetails) -> str:
    *parents, key = error["loc"]
    if key in _MEANT:
        return f"is not a setting; {_MEANT[str(key)]}"
    known = list(_model_at(parents).model_fields)
    near = nearest(key, known)
    return f"is not a setting{near or '; known here are ' + ', '.join(known)}"


def _say_missing(error: ErrorDetails) -> str:
    *parents, key = error["loc"]
    text = _model_at(parents).model_fields[str(key)].description or ""
    return f"is missing: {text[:1].lower()}{text[1:]}".rstrip(".")


def not_a_compressor(name: str) -> str:
    """Return the sentence that refuses a name, and offers those that there are."""
    return _not_a("compressor", name)


def _not_a(kind: str, name: str) -> str:
    return f"{show(name)} is not a {kind}{_offer(name, list(_BRANCHES[kind]))}"


def _kind(error: ErrorDetails) -> str:
    return "strategy" if error["loc"][-1] == "strategy" else "compressor"


def _say_no_branch(error: ErrorDetails) -> str:
    return f"has no name; give name = one of {_quoted(list(_BRANCHES[_kind(error)]))}"


def _say_no_table(error: ErrorDetails) -> str:
    example = "diloco" if _kind(error) == "strategy" else "int8"
    return f'must be a table such as {{ name = "{example}" }}, not {show(error["input"])}'


def _say_choice(error: ErrorDetails) -> str:
    # pydantic gives the allowed strings as "'a', 'b' or 'c'".
    listed = str(error["ctx"]["expected"]).replace(" or ", ", ").split(", ")
    names = [name.strip("'") for name in listed]
    return f"{show(error['input'])} is not allowed{_offer(error['input'], names)}"


def _say_bounds(error: ErrorDetails) -> str:
    """Name all bounds of the field, not only the one that was hit."""
    keys = list(error["loc"])
    while keys and isinstance(keys[-1], int):  # an item of a list
        keys.pop()
    field = _field(_model_at(keys[:-1]), str(keys[-1]))
    wanted = bounds_text(_constraints(field)) or error["msg"].removeprefix("Input should be ")
    unit = _unit(error["loc"])
    return f"must be {wanted}{unit and f' {unit}'}, not {show(error['input'])}"


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    """Return the field that a key sets, by its name or by another that it may have in a file."""
    for name, field in model.model_fields.items():
        others = field.validation_alias
        if key == name or (isinstance(others, AliasChoices) and key in others.choices):
            return field
    return None


def _constraints(field: FieldInfo | None) -> list[Any]:
    """Return a field's constraints; those of an item, or of what may be left out, are inside."""
    return [] if field is None else [*field.metadata, *_inside(field.annotation)]


def _inside(annotation: object) -> Iterator[Any]:
    for part in get_args(annotation):
        yield from getattr(part, "__metadata__", ())
        yield from _inside(part)


_SAY: dict[str, Callable[[ErrorDetails], str]] = {
    "extra_forbidden": _say_unknown_key,
    "missing": _say_missing,
    "union_tag_invalid": lambda error: _not_a(_kind(error), error["ctx"]["tag"]),
    "union_tag_not_found": _say_no_branch,
    "model_attributes_type": _say_no_table,
    "enum": _say_choice,
    "literal_error": _say_choice,
    "greater_than": _say_bounds,
    "greater_than_equal": _say_bounds,
    "less_than": _say_bounds,
    "less_than_equal": _say_bounds,
    "multiple_of": _say_bounds,
    "value_error": lambda error: str(error["ctx"]["error"]),
}


def bounds_text(metadata: list[Any]) -> str:
    """Return the bounds of a field in words; nothing if it has none.

    Example:
        >>> from annotated_types import Ge, MultipleOf
        >>> bounds_text([Ge(8), MultipleOf(2)])
        'at least 8 and a multiple of 2'
    """
    texts = (
        text.format(getattr(constraint, attribute))
        for constraint in metadata
        for attribute, text in _BOUNDS.items()
        if hasattr(constraint, attribute)
    )
    return " and ".join(dict.fromkeys(texts))


def _offer(word: object, names: list[str]) -> str:
    # Among few short names, "gpu" is two thirds of "cpu", and means another thing.
    return f"; must be one of {_quoted(names)}{nearest(word, names, cutoff=0.7)}"


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _model_at(loc: list[str | int]) -> type[BaseModel]:
    """Return the model that describes the table at a place."""
    model: type[BaseModel] = Config
    for before, part in zip(("", *loc), loc, strict=False):
        branches = _BRANCHES.get(before, CHOICES)
        if part in branches:
            model = branches[str(part)]
        elif isinstance(part, str):
            model = _find_model(model.model_fields[part].annotation) or model
    return model


def _find_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_find_model(argument) for argument in typing.get_args(annotation))
    return next((model for model in inner if model is not None), None)
