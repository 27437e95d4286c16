"""Ranks on one machine share its cores, and nothing adds to the threads asked for."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _rank_models import loss_of
from _ranks import Group, settings
from _training import registered

from compressa.engine.start import cores
from compressa.engine.start.cores import Host, default_threads, has_core, own_host, work_alone
from compressa.engine.units.unit_runtime import UnitRuntime

CORES = len(os.sched_getaffinity(0))


def hired(
    *,
    config: Any,
    cores: list[list[int]] | None = None,
    launched: int | None = None,
    torch_threads: int = 1,
) -> dict[str, Any]:
    """Train a step; return how many threads there were, and what torch used on them.

    Args:
        config: The configuration.
        cores: By rank, the cores that it is bound to before it registers.
        launched: What a launcher says of the machine's ranks.
        torch_threads: The user's own setting.
    """
    usual_cores, usual_threads = os.sched_getaffinity(0), torch.get_num_threads()
    says = {} if launched is None else {"LOCAL_WORLD_SIZE": str(launched)}
    torch.set_num_threads(torch_threads)
    if cores is not None:
        os.sched_setaffinity(0, cores[dist.get_rank()])
    try:
        with mock.patch.dict(os.environ, says):
            return _observed(config)
    finally:
        os.sched_setaffinity(0, usual_cores)
        torch.set_num_threads(usual_threads)


def _observed(config: Any) -> dict[str, Any]:
    collect, seen = UnitRuntime.collect, {}

    def watched(self: UnitRuntime, gradients: Any) -> list[torch.Tensor]:
        values = collect(self, gradients)
        before = _threads_of_libraries()
        torch.ones(1 << 20).add_(1.0)  # large enough for threads of torch's own
        made = len(_lasting(_threads_of_libraries() - before))
        seen[threading.current_thread().name] = (torch.get_num_threads(), made)
        return values

    with (
        registered("mlp", config) as (wrapped, handle),  # which compiles on the user's thread
        mock.patch.object(UnitRuntime, "collect", watched),
    ):
        loss_of(wrapped, dist.get_rank(), 0, torch.float32).backward()
        workers = [t.name for t in threading.enumerate() if t.name.startswith("compressa-codec")]
        return {
            "threads": handle.engine.session.threads,
            "workers": len(workers),
            "torch": sorted(set(seen.values())),
            "user": torch.get_num_threads(),
            "later": _in_a_new_thread(),
        }


def _threads_of_libraries() -> set[int]:
    """Return the process's threads that are not Python's: those may begin at any time."""
    every = {int(name) for name in os.listdir("/proc/self/task")}
    return every - {thread.native_id for thread in threading.enumerate()}


def _lasting(threads: set[int]) -> set[int]:
    """Those that are no thread of Python's after a while either: one that begins says so late."""
    end_s = time.monotonic() + 1.0
    while threads and time.monotonic() < end_s:
        time.sleep(0.01)
        threads &= _threads_of_libraries()
    return threads


def _in_a_new_thread() -> int:
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return answers[0]


def host(*numbers: int, machine: str = "a", usable: int | None = None) -> Host:
    return Host(machine, frozenset(numbers), len(numbers) if usable is None else usable)


@pytest.mark.parametrize(
    ("hosts", "launched", "threads"),
    [
        ([host(*range(8))], 1, 8),
        ([host(*range(64))], 1, 8),  # more do not make memory faster
        ([host(*range(8))] * 3, 1, 2),
        ([host(*range(2))] * 3, 1, 1),  # at least one, be it too many
        ([host(*range(8)), host(*range(8), machine="b")], 1, 8),
        ([host(0, 1, 2, 3), host(4, 5, 6, 7)], 2, 4),  # each bound to its own cores
        ([host(0, 1, 2, 3), host(3, 4, 5, 6)], 1, 2),
        ([host(*range(8), usable=3)], 1, 3),  # what a control group grants
        ([host(*range(8))], 4, 2),  # the others train another model
        ([host(*range(8))] * 2, 4, 2),
        ([host(*range(8))] * 4, 2, 2),  # a launcher that knows less than we do
    ],
)
def test_ranks_share_the_cores_that_they_may_both_use(
    hosts: list[Host], launched: int, threads: int
) -> None:
    assert default_threads(0, hosts, launched) == threads


@pytest.mark.parametrize(
    ("hosts", "launched", "own"),
    [
        ([host(0, 1)], 1, True),
        ([host(0, 1)] * 2, 1, True),
        ([host(0, 1)] * 3, 1, False),
        ([host(0, 1), host(0, 1, machine="b")], 1, True),
        ([host(0), host(1)], 2, True),
        ([host(*range(8), usable=1)] * 2, 1, False),
        ([host(0, 1)], 3, False),
    ],
)
def test_a_rank_has_a_core_where_there_are_as_many_as_ranks(
    hosts: list[Host], launched: int, own: bool
) -> None:
    assert has_core(0, hosts, launched) is own


def test_a_host_survives_its_message() -> None:
    assert Host.of(own_host().message()) == own_host()


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 4),
        ({"job/cpu.max": "150000 100000"}, 1),
        ({"job/cpu.max": "max 100000", "cpu.max": "350000 100000"}, 3),
        ({"job/cpu.max": "1000 100000"}, 1),
        ({"job/cpu.max": "900000 100000"}, 4),
        ({"cpu/old/cpu.cfs_quota_us": "250000", "cpu/old/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/old/cpu.cfs_quota_us": "-1", "cpu/old/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_quotas_of_control_groups_count(
    files: dict[str, str], usable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    read = cores._text
    groups = "5:cpu,cpuacct:/old\n3:memory:/old\n0::/job"
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "_own_cores", lambda: frozenset(range(4)))
    monkeypatch.setattr(
        cores, "_text", lambda file: groups if str(file) == "/proc/self/cgroup" else read(file)
    )
    assert own_host().usable == usable


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_one_machine_divide_its_cores(size: int, two: Group, four: Group) -> None:
    group = two if size == 2 else four
    for answer in group.run(hired, config=settings("int8")):
        assert answer["threads"] == max(1, min(CORES // size, 8))
        assert answer["workers"] <= answer["threads"]


@pytest.mark.ranks
@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_ranks_with_cores_of_their_own_keep_them(two: Group) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    answers = two.run(hired, config=settings("int8"), cores=[[first], others])
    assert [answer["threads"] for answer in answers] == [1, min(len(others), 8)]


@pytest.mark.ranks
def test_ranks_that_only_the_launcher_knows_count_too(two: Group) -> None:
    for answer in two.run(hired, config=settings("int8"), launched=2 * CORES):
        assert answer["threads"] == 1


@pytest.mark.ranks
def test_what_the_user_says_is_done(two: Group) -> None:
    config = settings("int8", engine={"threads": 3})
    for answer in two.run(hired, config=config):
        assert answer["threads"] == 3
        assert answer["workers"] <= 3


@pytest.mark.ranks
def test_torch_adds_no_threads_to_the_workers_and_keeps_the_users_elsewhere(two: Group) -> None:
    config = settings("powersgd", engine={"threads": 2})
    for answer in two.run(hired, config=config, torch_threads=3):
        assert answer["torch"] == [[1, 0]]
        assert answer["user"] == answer["later"] == 3


def _begin(barrier: threading.Barrier) -> None:
    barrier.wait(10)
    work_alone()


def test_threads_that_begin_at_once_leave_the_users_setting() -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in range(20):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(_begin, [threading.Barrier(8)] * 8))
            with ThreadPoolExecutor(1) as later:
                assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(usual)
