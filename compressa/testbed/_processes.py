"""Starts programs of a testbed, and finds and ends its processes, whoever started them.

A process belongs to a testbed when its environment carries the testbed's mark, which children
inherit, or when it sits in one of the testbed's network namespaces. Process numbers are used
again by the kernel, so a process that is remembered is named by its number and its start time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

MARK_VARIABLE = "COMPRESSA_TESTBED"
_PATIENCE_S = 5.0
_BOOTSTRAP = """
import runpy, sys, types
folder, module = sys.argv[1:3]
for name, path in (("compressa", folder), ("compressa.testbed", folder + "/testbed")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
del sys.argv[1:3]
runpy.run_module("compressa.testbed." + module, run_name="__main__", alter_sys=True)
"""


def script_argv(module: str, *arguments: str) -> list[str]:
    """Give the command line that runs `compressa.testbed.<module>` with the arguments.

    `python -m compressa.testbed._keeper` would run `compressa/__init__.py` first, and whatever that
    imports. These programs run on every host for every rank, so they see empty stand-ins for both
    packages instead, and start in some 20 ms. They may import only the standard library,
    `compressa.errors`, `compressa.pacing` and their neighbours here.
    """
    folder = str(Path(__file__).resolve().parent.parent)
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, folder, module, *arguments]


@dataclass(frozen=True)
class ProcessId:
    """One process of this boot of the machine.

    Attributes:
        pid: Its number.
        start_ticks: When it started, in clock ticks since boot.
    """

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Identify a running process; None when there is none, or it has ended."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self


def find_processes(mark: str, network_inodes: Collection[int] = ()) -> set[int]:
    """List the process numbers that belong to a testbed, without the calling process.

    Args:
        mark: The testbed's id, as in the environment variable COMPRESSA_TESTBED.
        network_inodes: Inode numbers of its network namespaces.
    """
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
    return {pid for pid in pids if _belongs(pid, wanted, network_inodes)}


def _belongs(pid: int, wanted: bytes, network_inodes: Collection[int]) -> bool:
    # Processes end while we look, and those of other users cannot be read: neither is ours.
    with contextlib.suppress(OSError):
        if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/net").st_ino in network_inodes
    return False


def end_processes(
    mark: str, network_inodes: Collection[int] = (), spare: Collection[int] = ()
) -> set[int]:
    """Kill the processes of a testbed until none is left.

    Args:
        mark: The testbed's id.
        network_inodes: Inode numbers of its network namespaces.
        spare: Process numbers to leave alone.

    Returns:
        The processes that were still there after five seconds: none, unless the kernel cannot
        end one (it hangs in a device), or it belongs to another user.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    killed: set[ProcessId] = set()
    while True:
        left = find_processes(mark, network_inodes) - set(spare)
        killed |= {process for pid in left if (process := ProcessId.of(pid)) is not None}
        # Who ends loses its marks first, and may take longer to close its sockets.
        left |= {process.pid for process in killed if process.alive()}
        if not left or time.monotonic() > deadline_s:
            return left
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
