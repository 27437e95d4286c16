"""What text that is not TOML was meant to be: the usual slips, each with what to write instead."""

from __future__ import annotations

import re

_YAML_LINE = re.compile(r"""\s*(?:- )?(?:[\w.-]+|"[^"]*"|'[^']*')\s*:(?:\s|$)|---|- """)
_VALUE_BEFORE = re.compile(r"[=,\[]\s*$")
_WORD = re.compile(r"(?:[\w.+/-]*[A-Za-z][\w.+/-]*|~)(?=[\s,\]}#]|$)")
_BOOLEANS = {
    "true": "true",
    "yes": "true",
    "on": "true",
    "false": "false",
    "no": "false",
    "off": "false",
}
_NOTHING = {"none", "null", "nil", "~"}


def likely_slip(text: str, line: int, column: int) -> str:
    """Return what to write instead, if it is known what was meant; else nothing.

    Args:
        text: What `tomllib` refused.
        line: Where it did, counted from 1.
        column: Likewise.

    Example:
        >>> likely_slip("compressor = int8", 1, 14)
        'put quotes around it: "int8"'
    """
    if text.lstrip().startswith("{"):
        return "this is JSON; in TOML write key = value, below a [section], without outer braces"
    written = text.splitlines()[line - 1] if line <= len(text.splitlines()) else ""
    if _YAML_LINE.match(written):
        return "this is YAML; in TOML write key = value, below a [section], and texts in quotes"
    start = _value_start(written, column - 1)
    word = _WORD.match(written, start) if start is not None else None
    return "" if word is None else _instead_of(word[0])


def _value_start(written: str, at: int) -> int | None:
    """Return where the value begins that holds a place; None if none does."""
    if not written[:at].strip():  # a line of a list that goes over several
        return at
    while at and re.match(r"[\w.+/-]", written[at - 1]):
        at -= 1
    before = written[:at]
    header = before.lstrip().startswith("[") and "=" not in before
    return at if _VALUE_BEFORE.search(before) and not header else None


def _instead_of(word: str) -> str:
    if word.lower() in _BOOLEANS:
        return f"write {_BOOLEANS[word.lower()]}"
    if word.lower() in _NOTHING:
        return "TOML has no such value: leave the key out"
    return f'put quotes around it: "{word}"'
