"""A netns testbed leaves nothing behind, however its program ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from _between_hosts import MARKS
from _until import until

import compressa
from compressa.errors import BackendUnavailable, StateError
from compressa.testbed import Testbed, list_testbeds, open_testbed, sweep_testbeds
from compressa.testbed._processes import ProcessId, find_processes
from compressa.testbed._records import Record, directory

pytestmark = MARKS

OWNER = textwrap.dedent(
    """
    import signal, sys, time, types
    # As at a terminal, also where a script in the background has the tests ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A stand-in for the package, so that the program starts without torch.
    sys.modules["compressa"] = types.ModuleType("compressa")
    sys.modules["compressa"].__path__ = [sys.argv[1]]
    from compressa.testbed import open_testbed
    with open_testbed(hosts=2, link="10mbit+5ms", kind="netns", self_check=False) as bed:
        marked = bed.spawn(0, ["sleep", "1000"])
        bare = bed.spawn(1, ["env", "-i", "sleep", "1000"])
        stopped = bed.spawn(1, ["sh", "-c", "kill -STOP $$"])
        line = bed._record.line
        pids = bed._keeper.process.pid, marked.pid, bare.pid, stopped.pid, line.pid
        print(bed.name, *pids, flush=True)
        time.sleep(1000)
    """
)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESSA_TESTBED_DIR", str(tmp_path))


def assert_nothing_left(mark: str, *pids: int) -> None:
    assert find_processes(mark) == set()
    assert [pid for pid in pids if ProcessId.of(pid) is not None] == []
    assert list(directory().glob(f"{mark}*")) == []
    assert mark not in [status.name for status in list_testbeds()]


def test_nothing_is_left_after_an_exception() -> None:
    pids = []

    def fail_inside(bed: Testbed) -> None:
        with bed:
            pids.append(bed._keeper.process.pid)
            pids.append(bed.spawn(0, ["sleep", "1000"]).pid)
            pids.append(bed.spawn(1, ["sh", "-c", "setsid env -i sleep 1000 & wait"]).pid)
            raise RuntimeError("in the block")

    bed = open_testbed(2, kind="netns", self_check=False)
    with pytest.raises(RuntimeError, match="in the block"):
        fail_inside(bed)
    assert_nothing_left(bed.name, *pids)
    with pytest.raises(StateError, match="closed"):
        bed.spawn(0, ["true"])


def test_nothing_is_left_when_making_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(directory().iterdir())
    monkeypatch.setattr("compressa.testbed._network.INTERFACE", "a-name-that-is-too-long")
    with pytest.raises(BackendUnavailable, match="network could not be made"):
        open_testbed(2, kind="netns")
    assert set(directory().iterdir()) <= before | {directory() / "lock"}


def start_owner() -> tuple[subprocess.Popen[str], str, list[int]]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(Path(compressa.__file__).parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    mark, *pids = owner.stdout.readline().split()
    assert all(ProcessId.of(int(pid)) is not None for pid in pids)
    return owner, mark, [int(pid) for pid in pids]


@pytest.mark.parametrize("inherited", [signal.default_int_handler, signal.SIG_IGN])
def test_nothing_is_left_after_ctrl_c(inherited: Any) -> None:
    before = signal.signal(signal.SIGINT, inherited)  # a handler is SIG_DFL in the child
    try:
        owner, mark, pids = start_owner()
    finally:
        signal.signal(signal.SIGINT, before)
    owner.send_signal(signal.SIGINT)
    _, said = owner.communicate(timeout=20)
    assert "KeyboardInterrupt" in said
    assert owner.returncode != 0
    assert_nothing_left(mark, *pids)


def test_processes_end_at_once_when_the_owner_is_killed() -> None:
    owner, mark, pids = start_owner()
    owner.kill()
    owner.communicate(timeout=20)
    assert until(lambda: all(ProcessId.of(pid) is None for pid in pids))
    assert (directory() / f"{mark}.json").exists()
    open_testbed(2, link="unshaped", kind="netns").close()
    assert_nothing_left(mark, *pids)


def test_the_next_start_sweeps_when_the_keeper_hangs_too() -> None:
    owner, mark, (keeper, marked, bare, stopped, line) = start_owner()
    os.kill(keeper, signal.SIGSTOP)
    owner.kill()
    owner.wait(timeout=20)
    assert ProcessId.of(marked) is not None
    assert sweep_testbeds() == [mark]
    owner.communicate(timeout=20)
    assert_nothing_left(mark, keeper, marked, bare, stopped, line)


def test_the_next_start_sweeps_when_the_keeper_is_killed_too() -> None:
    owner, mark, (keeper, marked, bare, stopped, line) = start_owner()
    os.kill(bare, signal.SIGKILL)  # it carries no mark: only its namespace would tell
    os.kill(keeper, signal.SIGKILL)
    owner.kill()
    owner.wait(timeout=20)
    assert ProcessId.of(marked) is not None
    assert sweep_testbeds() == [mark]
    owner.communicate(timeout=20)
    assert_nothing_left(mark, keeper, marked, stopped, line)


def test_a_keeper_that_has_closed_its_files_and_is_not_gone_yet_has_no_namespaces() -> None:
    ending = os.open("/dev/null", os.O_RDONLY)
    os.close(ending)
    keeper = ProcessId.of(os.getpid())
    record = Record(
        mark="m",
        name="m",
        kind="netns",
        link="",
        hosts=(),
        owner=None,
        keeper=keeper,
        net_fds=(ending,),
    )
    assert record.network_inodes() == []


def test_a_living_owner_is_not_swept() -> None:
    with open_testbed(2, kind="netns", self_check=False) as bed:
        assert sweep_testbeds() == []
        assert bed.name in [status.name for status in list_testbeds()]
