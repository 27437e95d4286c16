"""Pacing: no more than rate * t + burst leaves in any time t, whoever sends; nobody starves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from _ranks import Group, same, settings
from _training import train
from _transports import PACED
from hypothesis import given
from hypothesis import strategies as st

from compressa.config import load_config
from compressa.engine.control.control import Control
from compressa.engine.start.cores import Host
from compressa.engine.start.pace import burst_bytes, host_pacer, paced_chunk_bytes
from compressa.errors import CompressaError, ConfigError, TransportError
from compressa.pacing import Pacer, default_burst_bytes
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.lowered.bucket import SharedEmptyAt

RATE = 8e6  # a megabyte a second


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def leave(pacer: Pacer, clock: Clock, size: int) -> float:
    """Send when the pacer says; return the time at which the bytes have left."""
    until_s = pacer.reserve(size)
    return clock.now_s if until_s is None else until_s


burst = st.integers(1, 100_000)
calls = st.lists(st.tuples(st.floats(0, 0.2), st.integers(1, 100_000)), min_size=1, max_size=30)


@given(burst, calls)
def test_a_bucket_never_exceeds_rate_times_t_and_a_burst(
    depth: int, sent: list[tuple[float, int]]
) -> None:
    clock = Clock()
    pacer = Pacer(RATE, depth, now_s=clock)
    left = []
    for pause_s, size in sent:
        clock.now_s += pause_s
        left.append((leave(pacer, clock, size), size))
    for first, (begin_s, size) in enumerate(left):
        total = 0
        for end_s, more in left[first:]:
            total += more
            assert total <= RATE / 8 * (end_s - begin_s) + max(depth, size) + 1


@given(burst, st.lists(st.integers(1, 100_000), min_size=1, max_size=30))
def test_who_always_has_something_to_send_gets_the_whole_rate(depth: int, sizes: list[int]) -> None:
    """So nobody starves: each frame leaves when all before it, and it, have had their time."""
    clock = Clock()
    pacer = Pacer(RATE, depth, now_s=clock)
    times_s = [leave(pacer, clock, size) for size in sizes]
    assert times_s == sorted(times_s)
    expected_s = max(0.0, 8 * (sum(sizes) - depth) / RATE)
    assert times_s[-1] - clock.now_s == pytest.approx(expected_s, abs=1e-6)


def test_a_late_wake_up_is_made_good_within_the_burst() -> None:
    clock = Clock()
    pacer = Pacer(RATE, 2000, now_s=clock)
    for _ in range(100):
        clock.now_s = leave(pacer, clock, 1000) + 0.0009  # every wake-up is so late
    # Without the bucket it would take 1.9 ms a frame in place of 1 ms.
    assert clock.now_s - 1000.0 == pytest.approx(0.1, abs=0.003)


def test_an_idle_bucket_holds_a_burst_and_no_more() -> None:
    clock = Clock()
    pacer = Pacer(RATE, 3000, now_s=clock)
    clock.now_s += 3600
    assert [leave(pacer, clock, 1000) for _ in range(3)] == pytest.approx([clock.now_s] * 3)
    assert pacer.reserve(1000) == pytest.approx(clock.now_s + 0.001)


def test_the_default_burst_is_a_millisecond_and_holds_a_frame() -> None:
    assert default_burst_bytes(1e9) == 125_000
    assert default_burst_bytes(1e6) == 16 << 10


# --- one bucket for several ----------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bucket"
    path.touch(0o600)
    return path


def test_those_who_share_a_bucket_take_turns(file: Path) -> None:
    clock = Clock()
    pacers = [Pacer(RATE, 1000, SharedEmptyAt(file), clock) for _ in range(3)]
    file.unlink()  # as soon as all have it open
    times_s = [leave(pacers[number % 3], clock, 1000) for number in range(30)]
    assert times_s == pytest.approx([1000.0 + 0.001 * number for number in range(30)])


def test_threads_that_share_a_bucket_lose_no_turn(file: Path) -> None:
    clock = Clock()
    pacers = [Pacer(RATE, 1000, SharedEmptyAt(file), clock) for _ in range(4)]

    def send(pacer: Pacer) -> None:
        for _ in range(100):
            pacer.reserve(1000)

    threads = [threading.Thread(target=send, args=(pacer,)) for pacer in pacers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert leave(pacers[0], clock, 1000) == pytest.approx(1000.0 + 0.4)


_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from compressa.transports.lowered.bucket import SharedEmptyAt
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    SharedEmptyAt(Path(sys.argv[1]))
except OSError:
    print("refused")
"""


def test_a_file_without_room_is_refused_when_it_is_opened(file: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT_ROOM, str(file)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"refused\n"


_SHARER = """
import sys
from pathlib import Path
from compressa.pacing import Pacer
from compressa.transports.lowered.bucket import SharedEmptyAt
pacer = Pacer(float(sys.argv[2]), 1000, SharedEmptyAt(Path(sys.argv[1])))
print("open", flush=True)
sys.stdin.readline()
for _ in range(1000):
    pacer.reserve(100)
"""


def test_processes_that_share_a_bucket_lose_no_turn(file: Path) -> None:
    pacer = Pacer(RATE, 1000, SharedEmptyAt(file))
    ahead_s = pacer.reserve(60_000_000)  # a minute, so that the bucket is never full meanwhile
    assert ahead_s is not None
    command = [sys.executable, "-c", _SHARER, str(file), str(RATE)]
    pipe = subprocess.PIPE
    sharers = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(2)]
    for sharer in sharers:
        assert sharer.stdout is not None
        assert sharer.stdout.readline() == b"open\n"
    for sharer in sharers:
        sharer.communicate(b"\n", timeout=60.0)
        assert sharer.returncode == 0
    assert pacer.reserve(100) == pytest.approx(ahead_s + 2001 * 0.0001, abs=1e-5)


# --- who shares one ------------------------------------------------------------------------------


class FakeControl:
    """The control channels of several ranks, each on a thread of its own."""

    def __init__(self, networks: list[str]) -> None:
        self.hosts = [Host("machine", frozenset({0}), 1, network) for network in networks]
        self._meeting = threading.Barrier(len(networks))
        self._said = [b""] * len(networks)

    def of(self, rank: int) -> Control:
        world = self

        class Rank:
            hosts = world.hosts

            def __init__(self) -> None:
                self.rank = rank

            def all_gather(self, data: bytes, what: str, deadline_s: float) -> list[bytes]:
                world._meeting.wait(deadline_s)
                world._said[rank] = data
                world._meeting.wait(deadline_s)
                return list(world._said)

        return cast("Control", Rank())


def opened(networks: list[str], folders: list[Path] | None = None) -> list[Any]:
    """What each rank gets, or the error that it raises."""
    schedule = load_config({"schedule": {"pace_bits_per_s": RATE, "burst_bytes": 4096}}).schedule
    control, results = FakeControl(networks), list[Any](networks)

    def start(rank: int) -> None:
        try:
            results[rank] = host_pacer(schedule, control.of(rank), 10.0)
        except CompressaError as error:
            results[rank] = error

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(len(networks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_of_one_network_share_a_bucket_and_others_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here, there, beside = opened(["a", "b", "a"])
    assert not os.listdir(tmp_path)  # no file has a name any more
    here.reserve(4 << 20)  # four seconds
    assert there.reserve(4096) is None
    until_s = beside.reserve(4096)
    assert until_s == pytest.approx(time.monotonic() + 4.19, abs=0.5)


def test_ranks_with_addresses_of_their_own_have_buckets_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = iter(["10.0.0.1", "10.0.0.2"])
    monkeypatch.setattr("compressa.engine.start.pace.local_address", lambda: next(names))
    first, second = opened(["a", "a"])
    first.reserve(4 << 20)
    assert second.reserve(4096) is None


def test_a_file_that_not_all_can_open_is_an_error_on_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("compressa.transports.lowered.bucket.SharedEmptyAt", refuse)
    for error in opened(["a", "a"]):
        assert isinstance(error, ConfigError)
        assert "rank 0 cannot share" in str(error)
        assert "TMPDIR" in str(error)


@pytest.mark.parametrize(
    "said", [b"", b"{}", b"[1, 2]", json.dumps(["a", "x", "/etc/passwd"]).encode()]
)
def test_a_rank_cannot_have_others_open_what_it_likes(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = load_config({"schedule": {"pace_bits_per_s": RATE}}).schedule

    class Hostile:
        rank, hosts = 1, [Host("machine", frozenset({0}), 1, "a")] * 2

        def all_gather(self, data: bytes, what: str, deadline_s: float) -> list[bytes]:
            return [said, data]

    with pytest.raises(TransportError, match="rank 0 said"):
        host_pacer(schedule, cast("Control", Hostile()), 1.0)


def test_frames_fit_into_the_burst() -> None:
    small = load_config({"schedule": {"pace_bits_per_s": RATE, "burst_bytes": "4KiB"}}).schedule
    assert paced_chunk_bytes(small, 256 << 10) == 4096 - FRAME_HEADER_BYTES
    assert paced_chunk_bytes(small, 1000) == 1000
    assert burst_bytes(small) == 4096
    assert paced_chunk_bytes(load_config({}).schedule, 256 << 10) == 256 << 10


def test_a_burst_without_a_pace_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="burst_bytes: is set, but nothing is paced"):
        load_config({"schedule": {"burst_bytes": 4096}})


@pytest.mark.ranks
@pytest.mark.parametrize("transport", PACED)
def test_paced_ranks_of_one_host_end_with_the_same_bits(transport: str, two: Group) -> None:
    config = settings("int8", exchange={"transport": transport})
    pace = {"pace_bits_per_s": 5e7, "burst_bytes": "4KiB"}
    plain = two.run(train, config=config, steps=3)
    paced = two.run(train, config={**config, "schedule": pace}, steps=3)
    texts = [same([result["parameters"] for result in results]) for results in (plain, paced)]
    assert texts[0] == texts[1]
    folder = Path(tempfile.gettempdir())
    assert not list(folder.glob("compressa-pace-*"))
