"""The communication thread: no worker computes any more when owners hear of a failure, or it ends.

Else gradients would be written to after a checkpoint was loaded, or memory that is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

import compressa.engine.communication
from compressa.collectives import Compute
from compressa.engine.communication import Communication
from compressa.engine.device_stream import DeviceStream
from compressa.engine.task import Task
from compressa.errors import CompressaError, TransportError
from compressa.transports.alone import Alone

WAIT_S = 20.0


class Computing:
    """Programs that compute until they are told to end.

    Attributes:
        begun: How many have.
        ended: How many have.
        heard: Of each that was told its end, how many computed just then.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._end = threading.Event()
        self.begun = self.ended = 0
        self.heard: list[int] = []

    def task(self, unit: int) -> Task:
        def program() -> Iterator[Compute]:
            yield Compute(self._work, "encode")

        return Task(unit, "net", 0, program(), self._finished)

    def let_end(self) -> None:
        self._end.set()

    def until(self, holds: Callable[[], bool]) -> bool:
        with self._changed:
            return self._changed.wait_for(holds, WAIT_S)

    def _work(self) -> None:
        with self._changed:
            self.begun += 1
            self._changed.notify_all()
        assert self._end.wait(WAIT_S)
        with self._changed:
            self.ended += 1

    def _finished(self, error: BaseException | None) -> None:
        with self._changed:
            self.heard.append(self.begun - self.ended)
            self._changed.notify_all()


@pytest.fixture
def communication() -> Communication:
    return Communication(Alone(), 2, 60.0, lambda error: error, DeviceStream())


def started(communication: Communication, count: int) -> Computing:
    computing = Computing()
    for unit in range(count):
        communication.start(computing.task(unit))
    assert computing.until(lambda: computing.begun == 2)
    return computing


def test_owners_hear_of_a_failure_when_nobody_computes(communication: Communication) -> None:
    computing = started(communication, count=4)  # two have a thread, two wait for one
    communication.fail(CompressaError("enough"))
    time.sleep(0.1)
    assert computing.heard == []
    computing.let_end()
    assert computing.until(lambda: len(computing.heard) == 4)
    assert computing.heard == [0, 0, 0, 0]
    assert computing.begun == computing.ended == 2  # what had not begun never does
    communication.close(0.0)


def test_nobody_computes_after_the_end(communication: Communication) -> None:
    computing = started(communication, count=3)
    threading.Timer(0.1, computing.let_end).start()
    communication.close(0.0)
    assert computing.begun == computing.ended == 2


def test_a_computation_that_does_not_end_is_told_of(communication: Communication) -> None:
    computing = started(communication, count=2)
    with (
        mock.patch.object(compressa.engine.communication, "_END_S", 0.2),
        pytest.raises(TransportError, match="2 of 2 worker threads"),
    ):
        communication.close(0.0)
    computing.let_end()


def test_a_failure_waits_for_what_computes_no_longer_than_it_may(
    communication: Communication,
) -> None:
    computing = started(communication, count=2)
    with mock.patch.object(compressa.engine.communication, "_END_S", 0.2):
        communication.fail(CompressaError("enough"))
        assert computing.until(lambda: len(computing.heard) == 2)
    assert computing.heard == [2, 2]
    computing.let_end()
    communication.close(0.0)
