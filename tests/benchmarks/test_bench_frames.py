"""What checks cost is told by steps in which nobody checks the data of frames."""

from __future__ import annotations

import pytest
from _ranks import Group

from benchmarks.frames import UNCHECKED, NoKeys, measured
from compressa.errors import PayloadError
from compressa.transports.base import Key
from compressa.transports.checks import CHECKSUMS
from compressa.transports.frames import Frame, Kind, read_frame
from compressa.transports.table import TRANSPORTS

DATA = memoryview(b"some data")


def cost_of_checks() -> tuple[float, float]:
    """Return the seconds of a step without checks, and how many times as long one with them is."""
    found = measured({}, "int8", pairs=2)
    assert UNCHECKED not in TRANSPORTS, "others could choose it"
    return found.off_s, found.ratio


def test_without_checks_any_data_pass_and_headers_are_still_checked() -> None:
    frame, none = Frame(Kind.DATA, 1, Key(0, 0, 0), len(DATA), 0, len(DATA)), NoKeys(0)
    header = frame.pack(DATA, none.to(1))
    read = read_frame(memoryview(header), 1, 100, "here")
    for data in (DATA, memoryview(b"else data")):
        read.verify(data, "here", none.named("it").coming_from(1))
    with pytest.raises(PayloadError):
        read.verify(DATA, "here", CHECKSUMS.coming_from(1))
    header[20] += 1
    with pytest.raises(PayloadError):
        read_frame(memoryview(header), 1, 100, "here")


@pytest.mark.ranks
def test_steps_with_and_without_checks_are_timed(two: Group) -> None:
    for off_s, ratio in two.run(cost_of_checks):
        assert off_s > 0
        assert 0.1 < ratio < 10
