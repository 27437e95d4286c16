"""The MPI transport carries every byte to its place between ranks of mpiexec, and ends in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from _ranks import Group, same, settings
from _ranks_mpi import MpiGroup, missing, mpi_group, shared_files

from compressa.errors import BackendUnavailable, ConfigError, Timeout
from compressa.transports import mpi_process
from compressa.transports.table import TRANSPORTS

JOBS = "_rank_jobs_transport"
ENDS = "_rank_jobs_transport_ends"
HAS_LEFT = "rank 1 is lost: it has left the training"
FRAME_HEADER_BYTES = 48
SOME_GOODBYES = [FRAME_HEADER_BYTES * count for count in range(4)]  # to who was done before
DEADLINE_S = 4.0

under_mpiexec = pytest.mark.skipif(bool(missing()), reason=missing() or "all is here")


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """However ranks end here, no file of theirs stays in shared memory."""
    before = shared_files()
    yield
    assert shared_files() <= before


@pytest.fixture(scope="module")
def pair() -> Iterator[MpiGroup]:
    """Two ranks, shared by the tests of this file; some leave one of them alone in a failure."""
    with mpi_group(2) as group:
        yield group
        group.run("compressa.transports.mpi_process.left_behind")
        group.leave_all(10.0)


@pytest.fixture(scope="module")
def many() -> Iterator[MpiGroup]:
    """Four ranks, shared by the tests of this file."""
    with mpi_group(4) as group:
        yield group
        assert group.leave_all(10.0) == 0, group.processes[0].stderr


@under_mpiexec
@pytest.mark.ranks
class TestAmongFour:
    """What four ranks of one mpiexec do."""

    def test_all_messages_arrive(self, many: MpiGroup) -> None:
        sizes = [1, 511, 512, 513, 5000, 31, 200_000]
        frames = sum(-(-length // 512) for length in sizes)
        for result in many.run(f"{JOBS}.all_to_all", kind="mpi", sizes=sizes):
            assert (result["wrong"], result["failures"]) == (0, 0)
            overhead = result["sent_bytes"] - result["payload_bytes"]
            goodbyes = overhead - frames * FRAME_HEADER_BYTES * 3
            assert goodbyes in SOME_GOODBYES
            assert result["messages"] == len(sizes) * 3

    def test_messages_match_in_any_order(self, many: MpiGroup) -> None:
        sizes = [100 + 300 * (unit % 5) for unit in range(40)]
        for result in many.run(f"{JOBS}.all_to_all", kind="mpi", sizes=sizes, reverse=True):
            assert (result["wrong"], result["failures"]) == (0, 0)

    def test_messages_of_no_byte_and_of_one(self, many: MpiGroup) -> None:
        lengths = [[1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 1]]
        assert many.run("_rank_jobs_mpi.empty_messages") == lengths

    def test_mpi_sums_all_types(self, many: MpiGroup) -> None:
        assert same(many.run("_rank_jobs_mpi.sums")) == {"wrong": [], "failures": 0}

    def test_sums_go_beside_named_messages(self, many: MpiGroup) -> None:
        for result in many.run(f"{JOBS}.all_reduces", kind="mpi", elems=1000):
            assert (result["sum"], result["failures"]) == ([10], 0)
            goodbyes = result["sent_bytes"] - 2 * 4 * 1000 * 3 // 4
            assert goodbyes in SOME_GOODBYES

    @pytest.mark.parametrize("compressor", ["int8", "topk", "none"])
    def test_training_has_the_bits_of_tcp(self, compressor: str, many: MpiGroup) -> None:
        configs = [
            settings(compressor, exchange={"transport": transport}) for transport in ("mpi", "tcp")
        ]
        results = many.run("_rank_jobs_mpi.train_over_both", configs=configs)
        for over_mpi, over_tcp in results:
            assert over_mpi == over_tcp
            assert over_mpi[0] == results[0][0][0]

    def test_nothing_stays_open(self, many: MpiGroup) -> None:
        many.run(f"{ENDS}.reopen", kind="mpi", times=2)
        for files in many.run(f"{ENDS}.reopen", kind="mpi", times=6):
            assert files[-1] <= files[0] + 1


@under_mpiexec
@pytest.mark.ranks
class TestBetweenTwo:
    """What two ranks of one mpiexec do."""

    def test_much_crosses_in_both_directions(self, pair: MpiGroup) -> None:
        for result in pair.run(f"{JOBS}.all_to_all", kind="mpi", sizes=[4 << 20, 10, 1 << 20]):
            assert (result["wrong"], result["failures"]) == (0, 0)

    def test_messages_may_be_shorter_than_their_buffers(self, pair: MpiGroup) -> None:
        lengths = pair.run(f"{JOBS}.shorter_than_capacity", kind="mpi")
        assert lengths == [[701, 2, 1301], [700, 1, 1300]]

    def test_an_urgent_message_overtakes_a_long_one(self, pair: MpiGroup) -> None:
        assert pair.run(f"{JOBS}.urgent_overtakes", kind="mpi")[1] == [1, 0]

    @pytest.mark.parametrize(("sent", "due"), [(99, 100), (101, 100), (3000, 100), (100, 3000)])
    def test_another_length_is_refused(self, sent: int, due: int, pair: MpiGroup) -> None:
        said = pair.run(f"{JOBS}.wrong_length", kind="mpi", sent=sent, due=due)[1]
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
        assert what in pair.run("_rank_jobs_mpi.frame_of", size=size, says=says)[1]

    def test_what_nobody_asked_for_is_limited(self, pair: MpiGroup) -> None:
        refused = pair.run(f"{JOBS}.too_much_early", kind="mpi", limit_bytes=1000, size=1001)
        assert "1001 bytes that nobody waits for" in refused[1]

    def test_waiting_takes_next_to_no_time_of_the_processor(self, pair: MpiGroup) -> None:
        for shares in pair.run("_rank_jobs_mpi.cost_of_waiting", seconds=0.6):
            assert max(shares.values()) < 0.04, shares

    def test_a_goodbye_ends_the_wait(self, pair: MpiGroup) -> None:
        assert pair.run(f"{ENDS}.leave_early", kind="mpi") == [HAS_LEFT, ""]

    def test_sending_to_who_has_left_is_a_loss(self, pair: MpiGroup) -> None:
        assert pair.run(f"{ENDS}.send_to_who_left", kind="mpi") == [HAS_LEFT, ""]

    def test_a_rank_that_gives_up_lets_the_other_end(self, pair: MpiGroup) -> None:
        first, second = pair.run(f"{ENDS}.fail_in_the_middle", kind="mpi", size=4 << 20)
        assert first["untouched"]
        assert first["failures"] == []
        assert second["failures"] == ["rank 0 is lost: it has left the training"]
        assert max(first["seconds"], second["seconds"]) < 8.0


@under_mpiexec
@pytest.mark.ranks
@pytest.mark.alone
def test_survivors_of_a_killed_rank_name_it_and_end() -> None:
    """MPI_Finalize would wait for it for ever, and its file in shared memory would stay."""
    with mpi_group(3, faults=True) as group:
        exchange = {"transport": "mpi", "deadline_s": DEADLINE_S}
        started = group.start(
            "_rank_jobs_faults.train_until_failure",
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
        left = group.run("_rank_jobs_mpi.alive_in_mpi", ranks=[0, 2], others=[0, 2])
        assert left == [2, 2]
        started_s = time.monotonic()
        group.leave_all(10.0)
        assert time.monotonic() - started_s < 5.0
        assert all(process.exit_code == 0 for process in group.processes)


@under_mpiexec
@pytest.mark.ranks
def test_ranks_that_mpiexec_did_not_start_are_told(fresh: Callable[[int], Group]) -> None:
    config = settings("int8", exchange={"transport": "mpi"})
    group = fresh(2)
    for outcome in group.errors("_rank_jobs_faults.register", config=config):
        assert outcome.error is not None
        assert "mpiexec -n 2 python" in outcome.error["message"]
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
