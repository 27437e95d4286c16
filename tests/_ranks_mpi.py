"""Real ranks under a real mpiexec, which run functions as those of `_ranks` do.

MPI counts the ranks in another order than torch: what mixes the two up is found out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from _ranks import MESSAGE_BYTES, Group, Pools, Process, Zygote

_START_S = 60.0
_BESIDE = Path(sys.executable).with_name("mpiexec")
MPIEXEC = str(_BESIDE) if _BESIDE.exists() else shutil.which("mpiexec")


def missing() -> str:
    """Say what is not installed here; nothing if all is."""
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "" if MPIEXEC else "there is no mpiexec"


def shared_files() -> set[str]:
    """Name MPICH's files in shared memory that no process has; other tests' ranks use some."""
    used: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            used |= set(re.findall(r"/dev/shm/(mpich_shm_\w+)", maps.read_text(errors="replace")))
    return {path.name for path in Path("/dev/shm").glob("mpich_shm_*")} - used


class MpiProcess(Process):
    """One rank that mpiexec has started."""

    def __init__(self, rank: int, link: socket.socket, pid: int, output: Path) -> None:
        self.rank, self.link, self.pid = rank, link, pid
        self._output = output

    @property
    def exit_code(self) -> int | None:
        """Zero when it has ended; only mpiexec knows the code."""
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return 0 if state == "Z" else None
        return 0

    @property
    def stderr(self) -> str:
        """What all ranks have written so far."""
        return self._output.read_text(errors="replace")

    def end(self) -> None:
        """Kill it if it still runs."""
        self.link.close()
        self.signal(signal.SIGKILL)


class MpiGroup(Group):
    """Ranks under one mpiexec, with a default process group over Gloo.

    Args:
        zygote: What ranks are forked from, when mpiexec has started a process for each.
        size: Number of ranks.
        faults: Whether a rank may be killed without the others: mpiexec is told to leave them
            alone, and has shells for children: MPICH's ends all when a child dies by a signal.
        meet: Whether they make a process group.
    """

    def __init__(
        self, zygote: Zygote, size: int, *, faults: bool = False, meet: bool = True
    ) -> None:
        self.size, self.jobs, self.suspect = size, 0, False
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        output = folder / "output"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen(size)
            listener.settimeout(_START_S)
            with output.open("wb") as stream:
                self.mpiexec = _start(
                    size, zygote.python, folder / "socket", faults, stream.fileno()
                )
            self.processes: list[Process] = []
            try:
                for _ in range(size):
                    link = listener.accept()[0]
                    number, pid = json.loads(link.recv(MESSAGE_BYTES))
                    self.processes.append(MpiProcess(size - 1 - number, link, pid, output))
            except TimeoutError:
                self.end()
                raise AssertionError(f"mpiexec starts nothing: {output.read_text()}") from None
        self.processes.sort(key=lambda process: process.rank)
        if meet:
            self._meet()

    def leave_all(self, timeout_s: float) -> int:
        """End all ranks that live the ordinary way; return mpiexec's own code."""
        for process in self.processes:
            process.leave()
        return self.mpiexec.wait(timeout_s)

    def end(self) -> None:
        """Kill what still runs."""
        super().end()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.mpiexec.pid, signal.SIGKILL)
        self.mpiexec.wait(10.0)
        self._folder.cleanup()


def _start(
    size: int, python: str, path: Path, faults: bool, output: int
) -> subprocess.Popen[bytes]:
    assert MPIEXEC is not None
    rank = [python, __file__, str(path), json.dumps(sys.path)]
    how: list[str] = []
    if faults:
        how = ["-disable-auto-cleanup"]
        rank = ["sh", "-c", 'trap "" USR1; "$0" "$@"; exit $?', *rank]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(
        [MPIEXEC, *how, "-n", str(size), *rank],
        env=os.environ | threads | {"GLOO_SOCKET_IFNAME": "lo"},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


@contextlib.contextmanager
def mpi_group(pools: Pools, size: int, **how: bool) -> Iterator[MpiGroup]:
    """Start a group, and end it; see `MpiGroup`."""
    group = MpiGroup(pools.zygote, size, **how)
    try:
        yield group
    finally:
        group.end()


def _serve() -> None:
    """In a rank."""
    from _rank_zygote import serve

    sys.path[:] = json.loads(sys.argv[2])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(sys.argv[1])
    link.send(json.dumps([int(os.environ["PMI_RANK"]), os.getpid()]).encode())
    serve(link)


if __name__ == "__main__":
    _serve()
