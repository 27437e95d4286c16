"""The first place where two plain values differ, to tell ranks what they do not share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from compressa.config.mistakes import Path, key_path

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
