"""The line of every key of any TOML file is found, or none is given."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from compressa.config.positions import key_lines

EVERYTHING = """\
# a comment = 1
title = "a \\" quoted # no comment" # a comment
"quoted.key" = 'literal ] }'
  dotted . "in parts".deep = 1979-05-27 07:32:00
long = \"\"\"
[not.a.header]
key = "no"\"\"\"\"
raw = '''
it''s = [
'''
[a]
list = [1, # one
  [2, 3], { x = 1, y.z = [
    4 ] }
  , "]" ]   # end
empty = []
none = {}
[a.b.c]
k = 1
[[fruit]]
name = "apple"
[fruit.physical]
color = "red"
[[fruit.varieties]]
name = "delicious"
[[fruit.varieties]]
[[ fruit ]]
inf = -inf
[[fruit.varieties]]
name = "plantain"
[ last ] # done
b = false"""


def lines(text: str) -> dict[Any, int]:
    return key_lines(text, tomllib.loads(text.replace("\\r", "")))


def test_every_key_and_list_item_has_its_line() -> None:
    found = lines(EVERYTHING)
    expected = {
        ("title",): 2,
        ("quoted.key",): 3,
        ("dotted", "in parts", "deep"): 4,
        ("long",): 5,
        ("raw",): 8,
        ("a",): 11,
        ("a", "list"): 12,
        ("a", "list", 0): 12,
        ("a", "list", 1, 1): 13,
        ("a", "list", 2, "y", "z", 0): 14,
        ("a", "list", 3): 15,
        ("a", "none"): 17,
        ("a", "b", "c"): 18,
        ("a", "b", "c", "k"): 19,
        ("fruit",): 20,
        ("fruit", 0, "physical", "color"): 23,
        ("fruit", 0, "varieties", 1): 26,
        ("fruit", 1): 27,
        ("fruit", 1, "inf"): 28,
        ("fruit", 1, "varieties", 0, "name"): 30,
        ("last",): 31,
        ("last", "b"): 32,
    }
    assert {path: found.get(path) for path in expected} == expected


def test_line_endings_of_windows_count_once() -> None:
    assert lines("a = 1\r\n\r\n[b]\r\nc = [\r\n2]\r\n")[("b", "c", 0)] == 5


def test_a_text_that_does_not_fit_what_was_parsed_gives_no_lines() -> None:
    assert key_lines("a = 1", {"a": 1}) == {("a",): 1}
    assert key_lines("a = 1", {"a": 1, "b": 2}) == {}
    assert key_lines("a = ", {"a": 1}) == {}


@pytest.mark.parametrize("text", ["", "\n", "# only a comment", "a=1", "[x]"])
def test_small_files_are_followed(text: str) -> None:
    assert set(lines(text)) == {(key,) for key in tomllib.loads(text)}
