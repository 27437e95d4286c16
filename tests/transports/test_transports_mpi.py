"""The MPI transport carries every byte to its place between ranks of mpiexec, and ends in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _failing import register, train_until_failure
from _ranks import Group, Pools, same, settings
from _ranks_mpi import MpiGroup, missing, mpi_group, shared_files
from _reacting import Answers
from _training import train
from _transport_calls import (
    all_reduces,
    all_to_all,
    fail_in_the_middle,
    leave_early,
    message,
    opened,
    reopen,
    send_to_who_left,
    shorter_than_capacity,
    too_much_early,
    urgent_overtakes,
    wrong_length,
)
from _until import until

from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.errors import BackendUnavailable, ConfigError, Timeout
from compressa.transports import mpi_process
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind
from compressa.transports.mpi import BUSY_S
from compressa.transports.table import TRANSPORTS

HAS_LEFT = "rank 1 is lost: it has left the training"
SOME_GOODBYES = [FRAME_HEADER_BYTES * count for count in range(4)]  # to who was done before
DEADLINE_S = 4.0

under_mpiexec = pytest.mark.skipif(bool(missing()), reason=missing() or "all is here")


def sums() -> dict[str, Any]:
    """Sum small whole numbers of every type, of one element and of several pieces."""
    wrong = []
    with opened("mpi") as (transport, failures):
        rank, size, answers = transport.rank, transport.size, Answers()
        dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        for number, dtype in enumerate((*dtypes, torch.int8, torch.uint8, torch.int32)):
            for elems in (1, 3_000_000):
                key, tensor = Key(number, elems, 0), torch.full((elems,), rank + 1, dtype=dtype)
                transport.all_reduce(BackendAllReduce(tensor), answers.done(key))
                assert answers.wait(key) == {}
                due = torch.full((elems,), size * (size + 1) // 2, dtype=dtype)
                if not torch.equal(tensor, due):
                    wrong.append([str(dtype), elems])
    return {"wrong": wrong, "failures": len(failures)}


def empty_messages() -> list[int]:
    """Exchange nothing with one peer, one byte with the others."""
    with opened("mpi") as (transport, _):
        rank, size, answers, key = transport.rank, transport.size, Answers(), Key(0, 0, 0)
        sizes = {peer: int((rank + peer) % 3 > 0) for peer in range(size) if peer != rank}
        exchange = Exchange(
            {peer: message(rank, peer, 0, size) for peer, size in sizes.items()},
            {peer: torch.zeros(size, dtype=torch.uint8) for peer, size in sizes.items()},
        )
        transport.exchange(key, exchange, 0, answers.done(key))
        received = answers.wait(key)
        assert isinstance(received, dict)
        for peer, size in sizes.items():
            assert torch.equal(received[peer], message(peer, rank, 0, size))
        return [received[peer].numel() for peer in sizes]


def frame_of(*, size: int, says: int) -> str:
    """Rank 0 sends a frame of another length than it may have; return rank 1's failure."""
    with opened("mpi") as (transport, failures):
        own = transport.transport
        if own.rank == 0:
            memory = torch.zeros(size, dtype=torch.uint8).numpy()
            if size >= FRAME_HEADER_BYTES:
                Frame(Kind.DATA, 5, Key(0, 0, 0), says, 0, says).write(memory)
            request = own._comm.Isend(memory, 1, own._tag)
        until(lambda: failures or own.rank == 0)
        dist.barrier()
        if own.rank == 0:
            request.Test()
        return str(failures[0]) if failures else ""


def cost_of_waiting(*, seconds: float) -> dict[str, float]:
    """Return the share of a core that the transport's thread takes: idle, and waiting.

    And what this thread takes that wakes as often and looks at nothing.
    """
    with opened("mpi") as (transport, _):
        answers, key, rank = Answers(), Key(0, 0, 0), transport.rank
        clock = time.pthread_getcpuclockid(
            next(t.ident for t in threading.enumerate() if t.name == "reactor")
        )

        def share() -> float:
            before_s = time.clock_gettime(clock)
            time.sleep(seconds)
            return (time.clock_gettime(clock) - before_s) / seconds

        idle = share()
        peer = 1 - rank
        if rank == 0:
            exchange = Exchange({}, {peer: torch.zeros(9, dtype=torch.uint8)})
            transport.exchange(key, exchange, 0, answers.done(key))
        waiting = share()
        dist.barrier()
        if rank == 1:
            exchange = Exchange({peer: message(1, 0, 0, 9)}, {})
            transport.exchange(key, exchange, 0, answers.done(key))
        answers.wait(key)
        before_s, end_s = time.thread_time(), time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(BUSY_S)
        waking = (time.thread_time() - before_s) / seconds
        return {"idle": idle, "waiting": waiting, "waking": waking}


def train_over_both(*, configs: list[Any]) -> list[Any]:
    """Train with each configuration; return what the replicas ended with, and the losses."""
    results = [train(config=config, steps=4) for config in configs]
    return [[result["parameters"], result["losses"]] for result in results]


def alive_in_mpi(*, others: list[int]) -> int:
    """Talk over MPI with those who are left, on a communicator of theirs."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    # MPI counts them the other way round, see `_ranks_mpi`.
    group = world.Get_group().Incl([world.size - 1 - rank for rank in others])
    comm = world.Create_group(group)
    total = comm.allreduce(1)
    comm.Free()
    return int(total)


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """However ranks end here, no file of theirs stays in shared memory."""
    before = shared_files()
    yield
    assert shared_files() <= before


@pytest.fixture(scope="module")
def pair(pools: Pools) -> Iterator[MpiGroup]:
    """Two ranks, shared by the tests of this file; some leave one of them alone in a failure."""
    with mpi_group(pools, 2) as group:
        yield group
        group.run(mpi_process.left_behind)
        group.leave_all(60.0)


@pytest.fixture(scope="module")
def many(pools: Pools) -> Iterator[MpiGroup]:
    """Four ranks, shared by the tests of this file."""
    with mpi_group(pools, 4) as group:
        yield group
        assert group.leave_all(60.0) == 0, group.processes[0].stderr


@under_mpiexec
@pytest.mark.ranks
class TestAmongFour:
    """What four ranks of one mpiexec do."""

    def test_all_messages_arrive(self, many: MpiGroup) -> None:
        sizes = [1, 511, 512, 513, 5000, 31, 200_000]
        frames = sum(-(-length // 512) for length in sizes)
        for result in many.run(all_to_all, kind="mpi", sizes=sizes):
            assert (result["wrong"], result["failures"]) == (0, 0)
            overhead = result["sent_bytes"] - result["payload_bytes"]
            goodbyes = overhead - frames * FRAME_HEADER_BYTES * 3
            assert goodbyes in SOME_GOODBYES
            assert result["messages"] == len(sizes) * 3

    def test_messages_match_in_any_order(self, many: MpiGroup) -> None:
        sizes = [100 + 300 * (unit % 5) for unit in range(40)]
        for result in many.run(all_to_all, kind="mpi", sizes=sizes, reverse=True):
            assert (result["wrong"], result["failures"]) == (0, 0)

    def test_messages_of_no_byte_and_of_one(self, many: MpiGroup) -> None:
        lengths = [[1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 1]]
        assert many.run(empty_messages) == lengths

    def test_mpi_sums_all_types(self, many: MpiGroup) -> None:
        assert same(many.run(sums)) == {"wrong": [], "failures": 0}

    def test_sums_go_beside_named_messages(self, many: MpiGroup) -> None:
        for result in many.run(all_reduces, kind="mpi", elems=1000):
            assert (result["sum"], result["failures"]) == ([10], 0)
            goodbyes = result["sent_bytes"] - 2 * 4 * 1000 * 3 // 4
            assert goodbyes in SOME_GOODBYES

    @pytest.mark.parametrize("compressor", ["topk", "none"])
    def test_training_has_the_bits_of_tcp(self, compressor: str, many: MpiGroup) -> None:
        configs = [
            settings(compressor, exchange={"transport": transport}) for transport in ("mpi", "tcp")
        ]
        results = many.run(train_over_both, configs=configs)
        for over_mpi, over_tcp in results:
            assert over_mpi == over_tcp
            assert over_mpi[0] == results[0][0][0]

    def test_nothing_stays_open(self, many: MpiGroup) -> None:
        many.run(reopen, kind="mpi", times=2)
        for files in many.run(reopen, kind="mpi", times=6):
            assert files[-1] <= files[0] + 1


@under_mpiexec
@pytest.mark.ranks
class TestBetweenTwo:
    """What two ranks of one mpiexec do."""

    def test_much_crosses_in_both_directions(self, pair: MpiGroup) -> None:
        for result in pair.run(all_to_all, kind="mpi", sizes=[4 << 20, 10, 1 << 20]):
            assert (result["wrong"], result["failures"]) == (0, 0)

    def test_messages_may_be_shorter_than_their_buffers(self, pair: MpiGroup) -> None:
        lengths = pair.run(shorter_than_capacity, kind="mpi")
        assert lengths == [[701, 2, 1301], [700, 1, 1300]]

    def test_an_urgent_message_overtakes_a_long_one(self, pair: MpiGroup) -> None:
        assert pair.run(urgent_overtakes, kind="mpi")[1] == [1, 0]

    @pytest.mark.parametrize(("sent", "due"), [(101, 100), (100, 3000)])
    def test_another_length_is_refused(self, sent: int, due: int, pair: MpiGroup) -> None:
        said = pair.run(wrong_length, kind="mpi", sent=sent, due=due)[1]
        assert f"rank 0 sends {sent} bytes" in said
        assert f"{due} are due" in said

    @pytest.mark.parametrize(
        ("size", "says", "what"),
        [
            (5, 0, "a frame of 5 bytes, where 48 to 560 are allowed"),
            (1 << 20, 9, "a frame of 1048576 bytes, where 48 to 560 are allowed"),
            (50, 40, "has 50 bytes and says 88 of itself"),
        ],
    )
    def test_a_frame_of_another_length_is_refused(
        self, size: int, says: int, what: str, pair: MpiGroup
    ) -> None:
        """A receive that is too short for what comes would be an error of MPI."""
        assert what in pair.run(frame_of, size=size, says=says)[1]

    def test_what_nobody_asked_for_is_limited(self, pair: MpiGroup) -> None:
        refused = pair.run(too_much_early, kind="mpi", limit_bytes=1000, size=1001)
        assert "1001 bytes that nobody waits for" in refused[1]

    @pytest.mark.alone
    def test_waiting_takes_next_to_no_time_of_the_processor(self, pair: MpiGroup) -> None:
        for shares in pair.run(cost_of_waiting, seconds=0.6):
            # Where a machine is slow, a look is worth as many wake-ups as where it is fast.
            most = max(0.04, 5 * shares.pop("waking"))
            assert max(shares.values()) < most, shares

    def test_a_goodbye_ends_the_wait(self, pair: MpiGroup) -> None:
        assert pair.run(leave_early, kind="mpi") == [HAS_LEFT, ""]

    def test_sending_to_who_has_left_is_a_loss(self, pair: MpiGroup) -> None:
        assert pair.run(send_to_who_left, kind="mpi") == [HAS_LEFT, ""]

    def test_a_rank_that_gives_up_lets_the_other_end(self, pair: MpiGroup) -> None:
        first, second = pair.run(fail_in_the_middle, kind="mpi", size=4 << 20)
        assert first["untouched"]
        assert first["failures"] == []
        assert second["failures"] == ["rank 0 is lost: it has left the training"]
        assert max(first["seconds"], second["seconds"]) < 8.0


@under_mpiexec
@pytest.mark.ranks
@pytest.mark.alone
def test_survivors_of_a_killed_rank_name_it_and_end(pools: Pools) -> None:
    """MPI_Finalize would wait for it for ever, and its file in shared memory would stay."""
    with mpi_group(pools, 3, faults=True) as group:
        exchange = {"transport": "mpi", "deadline_s": DEADLINE_S}
        started = group.start(
            train_until_failure,
            config=settings("int8", exchange=exchange),
            culprit=1,
            how="kill",
            phase="backward",
            close=True,
        )
        outcomes = group.collect([started[0], started[2]], 20.0)
        for outcome in outcomes:
            assert outcome.ok, outcome.explain()
            assert outcome.value["type"] == "PeerLost"
            assert outcome.value["rank"] == 1
            assert outcome.value["seconds"] < DEADLINE_S + 1.0
            assert outcome.value["left"] == []
        left = group.run(alive_in_mpi, ranks=[0, 2], others=[0, 2])
        assert left == [2, 2]
        started_s = time.monotonic()
        group.leave_all(60.0)
        assert time.monotonic() - started_s < 5.0
        assert all(process.exit_code == 0 for process in group.processes)


@under_mpiexec
@pytest.mark.ranks
def test_ranks_that_mpiexec_did_not_start_are_told(fresh: Callable[[int], Group]) -> None:
    config = settings("int8", exchange={"transport": "mpi"})
    group = fresh(2)
    for said in group.refused(register, "ConfigError", config=config):
        assert "mpiexec -n 2 python" in said
    assert group.leave() == [0, 0]


def test_variables_of_an_mpiexec_that_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI would end the process."""
    monkeypatch.setenv("PMI_FD", "999999")
    with pytest.raises(BackendUnavailable, match="a launcher such as torchrun stands between"):
        mpi_process._refuse_inherited()


def test_a_part_of_the_ranks_can_not_begin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI would wait for the others for ever."""
    monkeypatch.setenv("PMI_SIZE", "3")
    mpi_process._refuse_part(3)
    with pytest.raises(ConfigError, match="2 of the 3 ranks"):
        mpi_process._refuse_part(2)


def fake(level: int = 2, size: int = 4, running: bool = True) -> SimpleNamespace:
    """What `load` looks at of `mpi4py.MPI`."""
    return SimpleNamespace(
        Is_initialized=lambda: running,
        Is_finalized=lambda: False,
        Query_thread=lambda: level,
        THREAD_SERIALIZED=2,
        COMM_WORLD=SimpleNamespace(size=size),
    )


@pytest.mark.parametrize(
    ("module", "error", "says"),
    [
        (fake(running=False), BackendUnavailable, "MPI is not running"),
        (fake(level=1), BackendUnavailable, "mpi4py.rc.thread_level"),
        (fake(size=1), ConfigError, "mpiexec -n 4 python"),
    ],
)
def test_an_mpi_that_does_not_fit_is_refused(
    module: SimpleNamespace, error: type[Exception], says: str
) -> None:
    with (
        mock.patch.object(mpi_process, "_imported", return_value=module),
        pytest.raises(error, match=says),
    ):
        mpi_process.load(4)


def test_without_mpi4py_the_extra_is_named() -> None:
    with (
        mock.patch("importlib.util.find_spec", return_value=None),
        pytest.raises(BackendUnavailable, match=r'pip install "compressa\[mpi\]"'),
    ):
        TRANSPORTS["mpi"].check(torch.device("cpu"), 2)


def test_a_call_that_blocks_ends_at_its_deadline() -> None:
    with (
        mock.patch.object(mpi_process, "left_behind") as noted,
        pytest.raises(Timeout, match=r"within 0\.05 s"),
    ):
        mpi_process._within(lambda: time.sleep(0.4), 0.05)
    noted.assert_called_once_with()


@pytest.mark.parametrize(
    ("met", "in_use", "times"), [(False, 0, 1), (False, 1, 0), (True, 0, 1), (True, 1, 1)]
)
def test_who_misses_a_start_is_lost_only_if_no_communicator_is_in_use(
    met: bool, in_use: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else MPI_Finalize would wait for who called something alone, though all is well."""
    monkeypatch.setattr(mpi_process._Ending, "in_use", in_use)
    with mock.patch.object(mpi_process, "left_behind") as noted:
        mpi_process.start_failed(met=met)
    assert noted.call_count == times
