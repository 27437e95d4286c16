from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from alike import Array, alike, odd, on_every_backend
from compressa.kernels import starts_with, write_prefix
from compressa.kernels.prefix import LONGEST
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import poisoned

prefixes = st.binary(max_size=LONGEST)


def begins(x: Array, prefix: bytes) -> bool:
    """Whether it does, as all backends say."""
    return bool(alike("prefix", lambda kernels: [kernels.starts_with(x, prefix)], reads=[x])[0])


@on_every_backend
@given(prefixes, st.binary(max_size=5), st.integers(0, 17))
def test_what_begins_with_it_does(prefix: bytes, rest: bytes, shift: int) -> None:
    assert begins(odd(np.frombuffer(prefix + rest, np.uint8), shift)[1], prefix)


@on_every_backend
@given(prefixes, st.integers(0, 17), st.data())
def test_one_other_bit_is_seen(prefix: bytes, shift: int, data: st.DataObject) -> None:
    x = odd(np.frombuffer(prefix + b"rest", np.uint8), shift)[1]
    at = data.draw(st.integers(0, x.size - 1))
    x[at] ^= 1 << data.draw(st.integers(0, 7))
    assert begins(x, prefix) == (at >= len(prefix))


@on_every_backend
@pytest.mark.parametrize("index", range(LONGEST))
def test_each_byte_counts(index: int) -> None:
    x = np.arange(LONGEST, dtype=np.uint8)
    prefix = x.tobytes()
    x[index] ^= 0x80
    assert not begins(x, prefix)
    assert begins(x, prefix[:index])


@given(prefixes.filter(bool))
def test_what_is_shorter_does_not_begin_with_it(prefix: bytes) -> None:
    assert not starts_with(np.frombuffer(prefix, np.uint8)[:-1], prefix)


def test_a_long_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 32 bytes, not 33"):
        starts_with(np.zeros(40, np.uint8), bytes(33))


@on_every_backend
@given(prefixes, st.integers(0, 17), st.integers(0, 5))
def test_what_is_written_is_there_and_nothing_else(prefix: bytes, shift: int, rest: int) -> None:
    def run(kernels: Any) -> list[Array]:
        whole, x = odd(poisoned(len(prefix) + rest, np.uint8), shift)
        kernels.write_prefix(x, prefix)
        return [whole]

    (whole,) = alike("prefix", run)
    due = poisoned(whole.size, np.uint8)
    due[shift : shift + len(prefix)] = np.frombuffer(prefix, np.uint8)
    assert whole.tobytes() == due.tobytes()


def test_a_prefix_that_does_not_fit_is_not_written() -> None:
    with pytest.raises(ValueError, match="at least the 5 bytes of prefix, not 4"):
        write_prefix(np.zeros(4, np.uint8), b"magic")
    with pytest.raises(ValueError, match="at most 32 bytes, not 33"):
        write_prefix(np.zeros(40, np.uint8), bytes(33))
    with pytest.raises(ValueError, match="must not be read-only"):
        write_prefix(np.frombuffer(b"magic", np.uint8), b"other")
