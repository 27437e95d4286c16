"""Frames: what is read is what was written, or a PayloadError, or harmless."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compressa.errors import PayloadError
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind, read_frame, way

EPOCH = 3
WAY = way(1, 0, "tcp")
MOST_BYTES = 1 << 16
u16, u32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)


def written(frame: Frame) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    buffer = np.full(FRAME_HEADER_BYTES + 8, 0xA7, np.uint8)
    frame.write(buffer)
    assert (buffer[FRAME_HEADER_BYTES:] == 0xA7).all()
    return buffer


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(Kind))
    data = draw(st.integers(0, MOST_BYTES if kind is Kind.DATA else 0))
    offset = draw(st.integers(0, 2**32 - 1 - data))
    message = draw(st.integers(offset + data, 2**32 - 1))
    key = Key(draw(u32), draw(u32), draw(u16), draw(u16))
    return Frame(kind, EPOCH, key, message, offset, data)


@settings(max_examples=100)
@given(frame=frames())
def test_round_trip(frame: Frame) -> None:
    got = read_frame(written(frame).data, EPOCH, MOST_BYTES, WAY)
    assert got._replace(check=0) == frame


@settings(max_examples=300)
@given(
    frame=frames(),
    changes=st.dictionaries(
        st.integers(0, FRAME_HEADER_BYTES - 1), st.integers(1, 255), min_size=1, max_size=4
    ),
)
def test_headers_that_were_changed_are_refused(frame: Frame, changes: dict[int, int]) -> None:
    buffer = written(frame)
    for index, change in changes.items():
        buffer[index] ^= change
    with pytest.raises(PayloadError, match="from rank 1 to rank 0 over tcp"):
        read_frame(buffer.data, EPOCH, MOST_BYTES, WAY)


@given(length=st.integers(1, 300), index=st.integers(0, 299), bit=st.integers(0, 7))
def test_each_bit_of_the_data_counts(length: int, index: int, bit: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8)
    frame = Frame(Kind.DATA, EPOCH, Key(41, 2, 3), length, 0, length)
    buffer = np.zeros(FRAME_HEADER_BYTES, np.uint8)
    frame.write(buffer, data.data)
    got = read_frame(buffer.data, EPOCH, MOST_BYTES, WAY)
    got.verify(data.data, WAY)
    data[index % length] ^= 1 << bit
    with pytest.raises(PayloadError, match=r"rank 1 to rank 0 over tcp for unit 2, .* of step 41"):
        got.verify(data.data, WAY)


@pytest.mark.parametrize(
    ("message", "offset", "data"),
    [(10, 0, 11), (10, 5, 6), (10, 11, 0), (MOST_BYTES + 9, 0, MOST_BYTES + 1), (0, 2**32 - 1, 1)],
)
def test_sizes_that_contradict_each_other_are_refused(message: int, offset: int, data: int) -> None:
    buffer = written(Frame(Kind.DATA, EPOCH, Key(1, 2, 3), message, offset, data))
    with pytest.raises(PayloadError, match="of a message of"):
        read_frame(buffer.data, EPOCH, MOST_BYTES, WAY)
