"""What checks cost is told by steps in which nobody computes them."""

from __future__ import annotations

import pytest
from _ranks import Group
from compressa.kernels.checksums import checksum_of_memory

from benchmarks.frames import Switch, measured
from compressa.errors import PayloadError
from compressa.transports import frames
from compressa.transports.base import Key
from compressa.transports.frames import Frame, Kind, read_frame

DATA = memoryview(b"some data")


def cost_of_checks() -> tuple[float, float]:
    """Return the seconds of a step without checks, and how many times as long one with them is."""
    found = measured({}, "int8", pairs=2)
    assert frames.checksum_of_memory is checksum_of_memory, "frames are not checked any more"
    return found.off_s, found.ratio


def sent(data: memoryview) -> bytes:
    return bytes(Frame(Kind.DATA, 1, Key(0, 0, 0), len(data), 0, len(data)).pack(data))


def taken(header: bytes, data: memoryview) -> None:
    read_frame(memoryview(header), 1, 100, "here").verify(data, "here")


def test_ends_that_check_and_ends_that_do_not_understand_each_other() -> None:
    switch = Switch()
    with switch.installed():
        checked = sent(DATA)
        switch.on = False
        unchecked = sent(DATA)
        taken(checked, DATA)
        switch.on = True
        taken(unchecked, DATA)
    assert checked == sent(DATA)
    assert checked != unchecked
    with pytest.raises(PayloadError):
        taken(unchecked, DATA)


@pytest.mark.ranks
def test_steps_with_and_without_checks_are_timed(two: Group) -> None:
    for off_s, ratio in two.run(cost_of_checks):
        assert off_s > 0
        assert 0.1 < ratio < 10
