"""Turns: jobs that know only the name of a link send in turns; whatever is wrong, all go on."""

from __future__ import annotations

import heapq
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from _ranks import Group, same, settings
from _training import train
from _until import until
from compressa.schedulers.link_sharing import MOST_CLAIMS, Claim, Line
from hypothesis import given
from hypothesis import strategies as st

from compressa.config.sections import LinkSharing
from compressa.engine.control.control import Control
from compressa.engine.sharing.gate import Gate
from compressa.engine.sharing.link_sharing import Follower, Leader
from compressa.engine.sharing.queueing import MOST_SEND_S, Queueing, decode_line, encode_line
from compressa.engine.sharing.shared_cell import FileCell, SharedCell, StoreCell, open_cell
from compressa.errors import TransportError

PATIENCE_S = 10.0
LONG_S = 10.0  # a job that sends for so long is not forgotten, however slow the machine is


# --- cells --------------------------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def cells(kind: str, folder: Path, port: int, count: int) -> Iterator[list[SharedCell]]:
    at = f"file://{folder}" if kind == "file" else f"tcp://127.0.0.1:{port}"
    opened = [open_cell(at, "link") for _ in range(count)]
    yield opened
    for cell in reversed(opened):  # the first one serves the others
        cell.close()


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_no_change_of_a_shared_cell_is_lost(kind: str, tmp_path: Path, port: int) -> None:
    with cells(kind, tmp_path, port, 4) as opened:

        def count(cell: SharedCell) -> None:
            for _ in range(50):
                cell.change(lambda data: b"%d" % (int(data or b"0") + 1))

        threads = [threading.Thread(target=count, args=(cell,)) for cell in opened]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen: list[bytes] = []

        def read(data: bytes) -> bytes:
            seen.append(data)
            return b""

        opened[1].change(read)
    assert seen[-1] == b"200"
    assert not list(tmp_path.iterdir())  # what holds nothing is not there


def test_a_file_that_stays_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compressa.engine.sharing.shared_cell._WAIT_S", 0.01)
    first, second = FileCell(tmp_path / "x"), FileCell(tmp_path / "x")

    def change(_: bytes) -> bytes:
        with pytest.raises(TransportError, match="locked"):
            second.change(lambda data: data)
        return b""

    first.change(change)


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "x").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"):
        FileCell(tmp_path / "x").change(lambda data: b"")
    assert (tmp_path / "precious").read_text() == "keep"


def test_a_store_that_nobody_serves_is_told(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compressa.engine.sharing.shared_cell._is_here", lambda host: False)
    with pytest.raises(ConnectionRefusedError):
        StoreCell("127.0.0.1", port, "x")


def test_what_is_no_text_in_a_store_is_replaced(port: int) -> None:
    first = StoreCell("127.0.0.1", port, "x")
    first._store.set("compressa/x", "\N{SNOWMAN}")
    seen = []

    def change(data: bytes) -> bytes:
        seen.append(data)
        return b"new"

    first.change(change)
    first.change(change)
    assert seen[-1] == b"new"
    first.close()


# --- what is on them -----------------------------------------------------------------------------

claims = st.builds(
    Claim,
    st.text(st.characters(codec="ascii"), min_size=1, max_size=8),
    st.integers(0, 2**40),
    st.floats(0, MOST_SEND_S),
)
lines = st.lists(claims, max_size=MOST_CLAIMS, unique_by=lambda claim: claim.job).map(
    lambda several: Line(tuple(several))
)


@given(lines)
def test_a_line_is_read_as_it_was_written(line: Line) -> None:
    data = encode_line(line)
    assert decode_line(data) == line
    assert data.isascii()
    assert bool(data) == bool(line.claims)


@given(st.binary(max_size=100))
def test_bytes_that_are_no_line_are_an_empty_one(data: bytes) -> None:
    assert decode_line(data) == Line()


@pytest.mark.parametrize(
    "said",
    [
        [2, []],
        [1, [["a", 1, 0.1], ["a", 2, 0.1]]],
        [1, [["", 1, 0.1]]],
        [1, [["a" * 65, 1, 0.1]]],
        [1, [[7, 1, 0.1]]],
        [1, [["a", 1.5, 0.1]]],
        [1, [["a", True, 0.1]]],
        [1, [["a", 1, -0.1]]],
        [1, [["a", 1, MOST_SEND_S * 2]]],
        [1, [["a", 1, float("nan")]]],
        [1, [["a", 1, float("inf")]]],
        [1, [["a", 1]]],
        [1, [[str(i), 1, 0.1] for i in range(MOST_CLAIMS + 1)]],
        [1, {"a": 1}],
        {"a": 1},
        7,
    ],
)
def test_a_hostile_line_is_an_empty_one(said: object) -> None:
    assert decode_line(json.dumps(said).encode()) == Line()
    assert decode_line(b"[" * 100_000) == Line()


# --- a job in the line ---------------------------------------------------------------------------


class Queued:
    """A job in the line, and which of its turns have come."""

    def __init__(self, open_cell: Callable[[], SharedCell]) -> None:
        self.turns: list[int] = []
        self.queueing = Queueing(open_cell, self.turns.append)


@pytest.fixture
def queued(tmp_path: Path) -> Iterator[Callable[[], Queued]]:
    made: list[Queued] = []

    def make() -> Queued:
        made.append(Queued(lambda: FileCell(tmp_path / "link.line")))
        return made[-1]

    yield make
    for each in made:
        each.queueing.close(PATIENCE_S)
    assert not [thread for thread in threading.enumerate() if thread.name == "compressa-line"]
    assert not list(tmp_path.iterdir())


def test_jobs_are_first_in_the_order_in_which_they_came(queued: Callable[[], Queued]) -> None:
    a, b, c = queued(), queued(), queued()
    a.queueing.join(1, LONG_S)
    assert until(lambda: a.turns == [1])
    b.queueing.join(1, LONG_S)
    time.sleep(0.05)
    c.queueing.join(1, LONG_S)
    time.sleep(0.05)
    assert not b.turns + c.turns
    a.queueing.leave()
    assert until(lambda: b.turns == [1])
    a.queueing.join(2, LONG_S)
    time.sleep(0.05)
    assert not c.turns
    b.queueing.leave()
    assert until(lambda: c.turns == [1])
    c.queueing.leave()
    assert until(lambda: a.turns == [1, 2])


def test_who_leaves_before_its_turn_does_not_get_it(queued: Callable[[], Queued]) -> None:
    a, b = queued(), queued()
    a.queueing.join(1, LONG_S)
    assert until(lambda: a.turns == [1])
    b.queueing.join(1, LONG_S)
    b.queueing.leave()
    a.queueing.leave()
    a.queueing.join(2, LONG_S)
    assert until(lambda: a.turns == [1, 2])
    assert not b.turns


def test_a_turn_does_not_come_after_the_job_has_left(tmp_path: Path) -> None:
    told = threading.Event()

    def open_late() -> SharedCell:
        assert told.wait(PATIENCE_S)
        return FileCell(tmp_path / "link.line")

    late = Queued(open_late)
    late.queueing.join(1, 0.1)
    late.queueing.leave()
    late.queueing.join(2, 0.1)
    told.set()
    assert until(lambda: 2 in late.turns)
    late.queueing.close(PATIENCE_S)
    assert late.turns == [2]


def test_a_job_that_died_first_in_the_line_is_forgotten(
    queued: Callable[[], Queued], tmp_path: Path
) -> None:
    dead = encode_line(Line((Claim("dead", 1, 0.0),)))
    FileCell(tmp_path / "link.line").change(lambda data: dead)
    begin_s = time.monotonic()
    alive = queued()
    alive.queueing.join(1, 0.1)
    assert until(lambda: alive.turns == [1])
    assert time.monotonic() - begin_s >= 0.25


def test_a_job_does_not_wait_for_a_line_that_is_full(
    queued: Callable[[], Queued], tmp_path: Path
) -> None:
    full = encode_line(Line(tuple(Claim(f"job {i}", 1, 30.0) for i in range(MOST_CLAIMS))))
    FileCell(tmp_path / "link.line").change(lambda data: full)
    late = queued()
    late.queueing.join(1, 0.1)
    assert until(lambda: late.turns == [1])
    FileCell(tmp_path / "link.line").change(lambda data: b"")


def test_a_job_that_cannot_reach_the_others_does_not_wait(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def refuse() -> SharedCell:
        tries.append(1)
        raise OSError("no such folder")

    alone = Queued(refuse)
    for turn in range(1, 4):
        alone.queueing.join(turn, 0.1)
        assert until(lambda turn=turn: alone.turns[-1:] == [turn])
        alone.queueing.leave()
    assert alone.turns == [1, 2, 3]
    assert len(tries) == 1  # and it is not asked for in every step
    assert "no such folder" in caplog.text
    alone.queueing._retry_s = 0.0
    alone.queueing.join(4, 0.1)
    assert until(lambda: len(tries) == 2)
    alone.queueing.close(PATIENCE_S)


# --- the gate ------------------------------------------------------------------------------------


class Clockwork:
    """Events on a clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        monkeypatch.setattr(
            "compressa.engine.sharing.link_sharing.time.monotonic", lambda: self.now_s
        )

    def post(self, event: Callable[[], None]) -> None:
        event()

    def call_at(self, time_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time_s, len(self._timers), event))

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self.now_s, _, event = heapq.heappop(self._timers)
            event()
        self.now_s = end_s


class Signals:
    """A control channel that notes signals, and gives them to who waits."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.awaited: dict[int, Callable[[], None]] = {}

    def signal(self, number: int) -> None:
        self.sent.append(number)
        self.awaited.get(number, lambda: None)()

    def await_signal(self, peer: int, number: int, heard: Callable[[], None]) -> None:
        assert peer == 0
        self.awaited[number] = heard


class Stand:
    """Stands in for the line."""

    def __init__(self, open_cell: object, first: Callable[[int], None]) -> None:
        self.first = first
        self.log: list[tuple[str, float]] = []

    def join(self, turn: int, send_s: float) -> None:
        self.log.append(("join", send_s))

    def leave(self) -> None:
        self.log.append(("leave", 0.0))

    def close(self, timeout_s: float) -> None:
        self.log.append(("close", 0.0))


class Rank0:
    """The gate of rank 0, and what is around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, longest_s: float = 10.0) -> None:
        monkeypatch.setattr("compressa.engine.sharing.link_sharing.Queueing", Stand)
        self.clock, self.signals = Clockwork(monkeypatch), Signals()
        share = LinkSharing(name="x", at="file:///tmp", longest_wait_s=longest_s)
        leader = Leader(cast("Control", self.signals), self.clock, share, 120.0)
        self.line = cast("Stand", leader._queueing)
        self.gate, self.begun = Gate(leader), list[str]()

    def enter(self, step: int, name: str) -> None:
        self.gate.enter(step, lambda: self.begun.append(name))

    def step(self, number: int, *, send_s: float, compute_s: float) -> None:
        """A step whose turn comes at once."""
        self.enter(number, f"step {number}")
        self.line.first(number + 1)
        self.clock.pass_time(send_s)
        self.gate.over()
        self.clock.pass_time(compute_s)


def test_exchanges_begin_in_their_order_when_the_turn_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = Rank0(monkeypatch)
    rank.enter(0, "a")
    rank.enter(0, "b")
    assert not rank.begun
    rank.line.first(1)
    assert rank.begun == ["a", "b"]
    assert rank.signals.sent == [1]
    rank.enter(0, "c")
    assert rank.begun == ["a", "b", "c"]
    rank.gate.over()
    rank.enter(1, "d")
    rank.line.first(1)  # of the turn that is over
    assert rank.begun == ["a", "b", "c"]
    rank.line.first(2)
    assert rank.begun[-1] == "d"
    rank.gate.over()
    assert [what for what, _ in rank.line.log] == ["join", "leave"] * 2
    rank.gate.over()  # nothing has begun
    assert len(rank.line.log) == 4


def test_a_step_waits_for_its_turn_no_longer_than_a_step_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = Rank0(monkeypatch)
    for number in range(3):
        rank.step(number, send_s=0.1, compute_s=0.3)
    rank.enter(3, "late")
    assert rank.line.log[-1] == ("join", pytest.approx(0.1))
    rank.clock.pass_time(0.39)
    assert rank.begun[-1] == "step 2"
    rank.clock.pass_time(0.02)
    assert rank.begun[-1] == "late"
    assert rank.signals.sent == [1, 2, 3, 4]
    assert rank.line.log[-1][0] == "leave"  # and another may be first
    rank.line.first(4)  # too late
    assert rank.signals.sent == [1, 2, 3, 4]
    rank.clock.pass_time(0.1)
    rank.gate.over()
    rank.clock.pass_time(0.3)
    rank.enter(4, "later")
    rank.clock.pass_time(0.21)  # half as long, now that it was in vain
    assert rank.begun[-1] == "later"


def test_no_step_waits_for_longer_than_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank0(monkeypatch, longest_s=0.05)
    rank.step(0, send_s=1.0, compute_s=1.0)
    rank.enter(1, "late")
    rank.clock.pass_time(0.06)
    assert rank.begun[-1] == "late"


def test_other_ranks_begin_at_the_leaders_word_or_in_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, signals, begun = Clockwork(monkeypatch), Signals(), list[str]()
    gate = Gate(Follower(cast("Control", signals), clock, deadline_s=8.0))
    gate.enter(0, lambda: begun.append("a"))
    assert not begun
    signals.signal(1)
    assert begun == ["a"]
    gate.over()
    gate.enter(1, lambda: begun.append("b"))
    clock.pass_time(3.9)
    assert begun == ["a"]
    clock.pass_time(0.2)
    assert begun == ["a", "b"]
    gate.close()


# --- real ranks ----------------------------------------------------------------------------------


def sharing(at: str) -> dict[str, object]:
    config = settings("int8")
    return {**config, "schedule": {"share": {"name": "link", "at": at}}}


@pytest.mark.ranks
@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_a_job_on_a_shared_link_ends_with_the_same_bits(
    kind: str, two: Group, tmp_path: Path, port: int
) -> None:
    """Beside a train that has died, which it forgets, and with one that is never alive."""
    at = f"file://{tmp_path}" if kind == "file" else f"tcp://127.0.0.1:{port}"
    if kind == "file":
        dead = encode_line(Line((Claim("dead", 1, 0.0),)))
        FileCell(tmp_path / "link.line").change(lambda data: dead)
    alone = two.run(train, config=settings("int8"), steps=4)
    shared = two.run(train, config=sharing(at), steps=4)
    texts = [same([result["parameters"] for result in results]) for results in (alone, shared)]
    assert texts[0] == texts[1]
    assert not list(tmp_path.iterdir())
