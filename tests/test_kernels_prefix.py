from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels import starts_with, write_prefix
from compressa.kernels.prefix import LONGEST
from compressa.kernels.reference import prefix as reference
from hypothesis import given
from hypothesis import strategies as st

prefixes = st.binary(max_size=LONGEST)


@given(prefixes, st.binary(max_size=5))
def test_what_begins_with_it_does(prefix: bytes, rest: bytes) -> None:
    x = np.frombuffer(prefix + rest, np.uint8)
    assert starts_with(x, prefix)
    assert reference.starts_with(x, prefix)


@given(prefixes.filter(bool), st.data())
def test_one_other_bit_is_seen(prefix: bytes, data: st.DataObject) -> None:
    x = np.frombuffer(prefix + b"rest", np.uint8).copy()
    x[data.draw(st.integers(0, len(prefix) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not starts_with(x, prefix)
    assert not reference.starts_with(x, prefix)


@given(prefixes.filter(bool))
def test_what_is_shorter_does_not_begin_with_it(prefix: bytes) -> None:
    assert not starts_with(np.frombuffer(prefix, np.uint8)[:-1], prefix)


def test_a_long_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 32 bytes, not 33"):
        starts_with(np.zeros(40, np.uint8), bytes(33))


@given(prefixes, st.binary(max_size=5))
def test_what_is_written_is_there_and_nothing_else(prefix: bytes, rest: bytes) -> None:
    for write in (write_prefix, reference.write_prefix):
        x = np.frombuffer(bytes(len(prefix)) + rest, np.uint8).copy()
        write(x, prefix)
        assert x.tobytes() == prefix + rest


def test_a_prefix_that_does_not_fit_is_not_written() -> None:
    with pytest.raises(ValueError, match="at least the 5 bytes of prefix, not 4"):
        write_prefix(np.zeros(4, np.uint8), b"magic")
    with pytest.raises(ValueError, match="at most 32 bytes, not 33"):
        write_prefix(np.zeros(40, np.uint8), bytes(33))
    with pytest.raises(ValueError, match="must not be read-only"):
        write_prefix(np.frombuffer(b"magic", np.uint8), b"other")
