"""Errors can be copied and sent to other processes, whatever they were made of."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa.errors import CompressaError, ConfigError, PayloadError, PeerLost, Timeout, escaped

ERRORS = [
    ConfigError("no compressor is called topq"),
    PayloadError("a frame from rank 2 has magic 0x1"),
    PeerLost(3, "rank 3 is lost"),
    Timeout((1, 2), "rank 0 waited 2 s for ranks 1, 2"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_another_says_the_same(way: str, error: CompressaError) -> None:
    with pytest.raises(type(error)):
        raise error
    assert error.__traceback__ is not None
    error.locate("rank 0 was in stage 1 of unit 2")
    again = copy.copy(error) if way == "copy" else pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert vars(again) == vars(error)
    assert again is not error
    assert again.__traceback__ is None


@given(text=st.text())
def test_no_message_moves_a_cursor_or_begins_a_line_of_its_own(text: str) -> None:
    for error in (ConfigError(text), PeerLost(1, text), Timeout((1,), text)):
        error.locate(text)
        rows = str(error).split("\n  ")
        assert all(row.isprintable() for row in rows)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        str(error).encode()  # where terminals and peers want UTF-8


@given(text=st.text())
def test_what_is_printable_is_shown_as_it_is(text: str) -> None:
    assert escaped(text).isprintable()
    assert escaped(escaped(text)) == escaped(text)
    if text.isprintable():
        assert escaped(text) == text


def test_rows_of_a_list_stay_rows() -> None:
    assert str(ConfigError("two mistakes\n  one\x1b[2J\n  two\r")) == (
        "two mistakes\n  one\\x1b[2J\n  two\\r"
    )


def test_where_something_failed_is_said_once() -> None:
    error = PayloadError("too short")
    for _ in range(2):
        error.locate("unit 'layer\x1b.weight'\n")
    assert str(error).count("layer") == 1
