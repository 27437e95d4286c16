"""Where in a TOML file each key stands, for messages that name a line.

`tomllib` keeps no positions. This scanner walks over text that `tomllib` has already accepted,
so it only has to know where things begin and end, never whether they are right. What it finds
is compared with what was parsed: if they differ in a single key, no line is given at all.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

from compressa.config.mistakes import Path

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_INLINE_BLANK = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
_SCALAR = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'[^']*'"
    r"|[^,\]}#\n]+",
    re.DOTALL,
)


def key_lines(text: str, parsed: Mapping[str, Any]) -> dict[Path, int]:
    r"""Return the line, counted from 1, of every key and list item.

    Args:
        text: The file's text, which is valid TOML.
        parsed: What `tomllib` made of it.

    Returns:
        Lines by path; empty if the text could not be followed everywhere.

    Example:
        >>> text = 'a.b = [1,\n 2]'
        >>> key_lines(text, tomllib.loads(text))[("a", "b", 1)]
        2
    """
    # tomllib reads both line endings as one.
    scanner = _Scanner(text.replace("\r\n", "\n"))
    try:
        lines = scanner.run()
    except _LostError:
        return {}
    return lines if lines.keys() == set(_paths(parsed, ())) else {}


def _paths(value: object, path: Path) -> Iterator[Path]:
    items: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


class _LostError(Exception):
    """The scanner came upon something that it does not know."""


class _Scanner:
    """Walks over the text once, and notes the line of each key."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[Path, int] = {}
        self._tables_in: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        """Return the line of every path."""
        table: Path = ()
        self._take(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._take(_BLANK)
        return self._lines

    def _header(self) -> Path:
        array = self._text.startswith("[[", self._at)
        self._skip("[[" if array else "[")
        line = self._line()
        keys = self._keys()
        self._skip("]]" if array else "]")
        path = self._resolve((), keys[:-1], line)
        path = (*path, keys[-1])
        self._note(path, line)
        if array:
            self._tables_in[path] = self._tables_in.get(path, 0) + 1
        return self._inside(path, line)

    def _resolve(self, table: Path, keys: list[str], line: int) -> Path:
        """Note each key on the way; a list of tables stands for its last."""
        for key in keys:
            table = (*table, key)
            self._note(table, line)
            table = self._inside(table, line)
        return table

    def _inside(self, path: Path, line: int) -> Path:
        if path not in self._tables_in:
            return path
        path = (*path, self._tables_in[path] - 1)
        self._note(path, line)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        keys = self._keys()
        self._skip("=")
        path = (*self._resolve(table, keys[:-1], line), keys[-1])
        self._note(path, line)
        self._value(path)

    def _value(self, path: Path) -> None:
        self._take(_INLINE_BLANK)
        opening = self._text[self._at : self._at + 1]
        if opening == "[":
            self._list(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            self._must_take(_SCALAR)

    def _list(self, path: Path) -> None:
        self._skip("[")
        index = 0
        while not self._closes("]"):
            self._note((*path, index), self._line())
            self._value((*path, index))
            index += 1
            self._comma()

    def _inline_table(self, path: Path) -> None:
        self._skip("{")
        while not self._closes("}"):
            self._pair(path)
            self._comma()

    def _closes(self, bracket: str) -> bool:
        self._take(_BLANK)
        if not self._text.startswith(bracket, self._at):
            return False
        self._at += 1
        return True

    def _comma(self) -> None:
        self._take(_BLANK)
        if self._text.startswith(",", self._at):
            self._at += 1

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._take(_INLINE_BLANK)
            keys.append(_plain(self._must_take(_KEY)))
            self._take(_INLINE_BLANK)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _note(self, path: Path, line: int) -> None:
        self._lines.setdefault(path, line)

    def _line(self) -> int:
        return bisect_right(self._ends, self._at - 1) + 1

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match[0] if match else ""

    def _must_take(self, pattern: re.Pattern[str]) -> str:
        taken = self._take(pattern)
        if not taken:
            raise _LostError
        return taken

    def _skip(self, mark: str) -> None:
        self._take(_INLINE_BLANK)
        if not self._text.startswith(mark, self._at):
            raise _LostError
        self._at += len(mark)


def _plain(key: str) -> str:
    """Return a key without its quotes and escapes."""
    return next(iter(tomllib.loads(f"{key} = 0"))) if key[0] in "\"'" else key
