"""Mistakes in a configuration and how they are shown; where two configurations differ."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from pydantic_core import PydanticCustomError

from compressa.errors import escaped

Path = tuple[str | int, ...]
"""Keys and list indices from the top of the file, such as ("rules", 0, "match")."""

_SHOWN = 120
"""Most characters of a key or a value in a message."""

MISTAKES = "compressa_mistakes"
"""Type of the pydantic error that `refuse` raises."""


class Mistake(NamedTuple):
    """What is wrong at one place.

    Attributes:
        path: Where it is.
        text: What is wrong and what would be right, after the key path.
        involves: Every other key that the judgement rests on. While one of them, or of those
            below it, holds another mistake, this one is not reported.
    """

    path: Path
    text: str
    involves: tuple[Path, ...] = ()


def refuse(mistakes: Sequence[Mistake]) -> NoReturn:
    """Raise all mistakes as one pydantic error, from inside a validator."""
    text = "; ".join(f"{key_path(mistake.path)}: {mistake.text}" for mistake in mistakes)
    raise PydanticCustomError(MISTAKES, "{text}", {"text": text, "mistakes": list(mistakes)})


def key_path(path: Sequence[str | int]) -> str:
    """Write a path as people do.

    Example:
        >>> key_path(("rules", 0, "match", "role"))
        'rules[0].match.role'
    """
    written = ""
    for part in path:
        if isinstance(part, int):
            written += f"[{part}]"
        else:
            written += f".{_cut(part)}" if written else _cut(part)
    return written or "the configuration"


def nearest(word: object, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question that offers the name most like `word`, or nothing.

    Args:
        word: What was written.
        names: What can be written.
        cutoff: Least likeness, from 0 to 1.

    Example:
        >>> nearest("topkk", ["topk", "int8"])
        '; did you mean "topk"?'
    """
    found = difflib.get_close_matches(str(word).lower(), list(names), n=1, cutoff=cutoff)
    return f'; did you mean "{found[0]}"?' if found else ""


def show(value: object) -> str:
    """Return a value as it stands in TOML, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{_cut(value)}"'
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple) and not value:
        return "[]"
    try:
        return _cut(repr(value))
    except (RecursionError, ValueError):  # Python writes out no number of so many digits
        return "what is too long to show"


def _cut(text: str) -> str:
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return escaped(shown)


def report(
    where: str, mistakes: Sequence[Mistake], lines: Mapping[Path, int], more: int = 0
) -> str:
    """Return the message that lists all mistakes, in the order of the file's lines.

    Args:
        where: The file's name, or what else was read.
        mistakes: At least one.
        lines: Line of each key, where known.
        more: How many others there are, which are not listed.
    """
    placed = sorted(((_line(mistake.path, lines), mistake) for mistake in mistakes), key=_order)
    rows = [_row(line, mistake) for line, mistake in placed]
    if more:
        rows.append(f"and {more} more")
    if len(rows) == 1:
        return f"{escaped(where)}: {rows[0]}"
    return "\n  ".join([f"{escaped(where)}: {len(mistakes) + more} mistakes", *rows])


def _line(path: Path, lines: Mapping[Path, int]) -> int | None:
    """Return the line of a key, or of the table that lacks it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _order(placed: tuple[int | None, Mistake]) -> int:
    return placed[0] or 0


def _row(line: int | None, mistake: Mistake) -> str:
    place = f"line {line}: " if line is not None else ""
    return f"{place}{key_path(mistake.path)}: {mistake.text}"


ABSENT: Final = "(absent)"
"""Stands for the value of a key that only the other side has."""


def first_difference(a: object, b: object) -> tuple[str, Any, Any] | None:
    """Return where two JSON-like values first differ, and both values there.

    Args:
        a: Mappings, lists, strings, numbers, booleans and None.
        b: The same.

    Returns:
        The key path and both values, `ABSENT` for one that is not there; None if all agree.
        Keys are looked at in the order of `a`, then those that only `b` has.

    Example:
        >>> first_difference({"seed": 1, "list": [1, 2]}, {"seed": 1, "list": [1, 3]})
        ('list[1]', 2, 3)
    """
    found = _difference(a, b, ())
    return None if found is None else (key_path(found[0]), found[1], found[2])


def _difference(a: object, b: object, path: Path) -> tuple[Path, Any, Any] | None:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return _first_of(a, b, [*a, *(key for key in b if key not in a)], path)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        left, right = dict(enumerate(a)), dict(enumerate(b))
        return _first_of(left, right, list(range(max(len(left), len(right)))), path)
    # In Python, True == 1; in a configuration they are two things.
    same = a == b and isinstance(a, bool) == isinstance(b, bool)
    return None if same else (path, a, b)


def _first_of(
    a: Mapping[Any, Any], b: Mapping[Any, Any], keys: list[Any], path: Path
) -> tuple[Path, Any, Any] | None:
    for key in keys:
        if key not in a or key not in b:
            return ((*path, key), a.get(key, ABSENT), b.get(key, ABSENT))
        found = _difference(a[key], b[key], (*path, key))
        if found is not None:
            return found
    return None
