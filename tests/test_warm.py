"""A process that is forked as a script: it ends as `python` would, and when that is ended."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from _ranks import Pools
from _scripts import Scripts

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, signal, sys
assert sys.modules["torch"], "it was imported before"
print(os.getpid(), os.environ["ASKED"], os.getcwd(), *sys.argv[1:], flush=True)
end = input()
if end == "raise":
    raise ValueError("of its own")
if end == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(end))
"""


@pytest.mark.parametrize(("end", "code"), [("3", 3), ("0", 0), ("raise", 1), ("die", -9)])
def test_a_script_ends_as_it_would_by_python(
    end: str, code: int, pools: Pools, tmp_path: Path
) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    command = [pools.zygote.python, "-u", str(file), "word"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"ASKED": "so"}, input=end, capture_output=True, text=True
    )
    assert done.returncode == code
    assert done.stdout.split()[1:] == ["so", str(tmp_path), "word"]
    assert ("ValueError: of its own" in done.stderr) == (end == "raise")


def test_a_script_ends_with_whoever_asked_for_it(pools: Pools, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    with subprocess.Popen(
        [pools.zygote.python, str(file)],
        env={"ASKED": "so"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline()
        asking.send_signal(signal.SIGKILL)
        assert asking.stdout.read() == "", "nobody has its other end open any more"


def test_who_says_nothing_disturbs_nobody(pools: Pools, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(f"{pools.zygote.python}.socket")
    done = subprocess.run([pools.zygote.python, "-c", "print(1)"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_who_asked_may_leave_in_the_turn_in_which_its_script_ends() -> None:
    control, near, far = (socket.socketpair() for _ in range(3))
    scripts = Scripts(control[0], near[0])
    pid = os.posix_spawn("/bin/true", ["true"], {})
    ended = os.pidfd_open(pid)
    scripts._waiting.register(far[0], selectors.EVENT_READ)
    scripts._waiting.register(ended, selectors.EVENT_READ)
    scripts._ended(pid, far[0], ended)
    assert far[1].recv(9) == b"0"
    scripts._left(pid, far[0])  # it was found in the same turn
    for each in (*control, *near, far[1]):
        each.close()
