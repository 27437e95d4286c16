"""Starts the ranks on a testbed's hosts: ours, MPI's by mpiexec, and nodes of Ray."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from compressa.bench.network.method import Maker, Method
from compressa.bench.network.ranks import Started
from compressa.testbed import Testbed

_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_RAY = {"RAY_USAGE_STATS_ENABLED": "0"}
# `-m` would import torch with the packages around the rank: stand-ins take their places.
_BARE = """
import runpy, sys, types
folder, name = sys.argv.pop(1), sys.argv.pop(1)
rank = "compressa.bench.network." + name
for name in ("compressa", "compressa.bench", "compressa.bench.network"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder + "/" + name.replace(".", "/").partition("/")[2]]
runpy.run_module(rank, run_name="__main__", alter_sys=True)
"""
# Stands in for ssh: mpiexec calls it as `[-x] HOST COMMAND...`.
_ENTER = """#!{python} -IS
import os, sys
words = [word for word in sys.argv[1:] if word != "-x"]
enter = {enter!r}[words[0]]
os.execvp(enter[0], [*enter, " ".join(words[1:])])
"""


def start_ranks(
    bed: Testbed, folder: Path, path: Path, most_bytes: int, deadline_s: float
) -> list[Started]:
    """Start one rank on every host, each with one thread.

    Args:
        bed: Where.
        folder: For logs.
        path: The driver's socket.
        most_bytes: The largest message.
        deadline_s: Longest wait of theirs.
    """
    words = [sys.executable, "-m", "compressa.bench.network.rank"]
    return start_each(bed, folder, [*words, str(path), str(most_bytes), str(deadline_s)])


def start_each(
    bed: Testbed, folder: Path, words: Sequence[str], env: Mapping[str, str] | None = None
) -> list[Started]:
    """Start a rank on every host, each with one thread.

    Args:
        bed: Where.
        folder: For logs.
        words: The command that each is; the environment tells it who it is, as torchrun's does.
        env: What else the environment holds.
    """
    meeting = {
        "WORLD_SIZE": str(len(bed.hosts)),
        "MASTER_ADDR": bed.hosts[0].address,
        "MASTER_PORT": str(_free_port()),
    }
    started = []
    for rank in range(len(bed.hosts)):
        log = folder / f"rank{rank}.log"
        own = {"RANK": str(rank), **meeting, **_THREADS, **(env or {})}
        started.append(Started(f"rank {rank}", _spawn(bed, rank, words, own, log), log))
    return started


def missing_mpi() -> str:
    """Say why MPI can not be measured here; nothing if it can."""
    if importlib.util.find_spec("mpi4py") is None or _mpiexec() is None:
        return "mpi4py or mpiexec is not installed: pip install 'compressa[mpi]'"
    return "" if os.geteuid() == 0 else "mpiexec can enter other hosts only as root"


def start_mpi(bed: Testbed, folder: Path, path: Path) -> Sequence[Started]:
    """Start MPI's ranks, one on every host, isolated so that they use the links."""
    mpiexec = _mpiexec()
    assert mpiexec is not None
    enter = {
        host.name: bed.command(i, ["/bin/sh", "-c"], cwd=None, isolate=True)
        for i, host in enumerate(bed.hosts)
    }
    script, log = folder / "enter", folder / "mpi.log"
    script.write_text(_ENTER.format(python=sys.executable, enter=enter))
    script.chmod(0o700)
    names = ",".join(host.name for host in bed.hosts)
    words = [mpiexec, "-launcher", "ssh", "-launcher-exec", str(script), "-hosts", names]
    words += ["-ppn", "1", "-n", str(len(bed.hosts)), "-iface", bed.hosts[0].interface]
    words += [*_bare("rank_mpi"), str(path)]
    return [Started("mpiexec", _spawn(bed, 0, words, _THREADS, log, isolate=True), log)]


def missing_ray() -> str:
    """Say why Ray can not be measured here; nothing if it can."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed: pip install 'compressa[bench-peers]'"
    return ""


def start_ray(bed: Testbed, folder: Path, path: Path) -> Sequence[Started]:
    """Start a node of Ray on each of the first two hosts, and what measures on the first.

    They share nothing but the link: no memory, no hostname, no folder.
    """
    first, second = (host.address for host in bed.hosts[:2])
    words = [[*_bare("rank_ray"), str(path), first], [*_bare("ray_node"), first, second]]
    started = []
    for host, several in enumerate(words):
        log = folder / f"ray{host}.log"
        process = _spawn(bed, host, several, _THREADS | _RAY, log, isolate=True)
        started.append(Started(f"Ray on host {host}", process, log))
    return started


class Others(NamedTuple):
    """Processes of another library on a testbed's hosts.

    Attributes:
        maker: Whose methods they carry out.
        missing: Says why they cannot be started; nothing if they can.
        start: Starts them, given hosts, a folder for logs and the driver's socket.
        speakers: How many of them speak to the driver; 0 for one on each host.
    """

    maker: Maker
    missing: Callable[[], str]
    start: Callable[[Testbed, Path, Path], Sequence[Started]]
    speakers: int = 0

    def owns(self, method: Method) -> bool:
        """Whether a method is theirs."""
        return method.by == self.maker


OTHERS = (Others("mpi", missing_mpi, start_mpi), Others("ray", missing_ray, start_ray, 1))


def _bare(module: str) -> list[str]:
    """Words that run a module of this package without what is around it."""
    home = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-c", _BARE, home, module]


def _mpiexec() -> str | None:
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _spawn(
    bed: Testbed,
    host: int,
    words: Sequence[str],
    env: dict[str, str],
    log: Path,
    *,
    isolate: bool = False,
) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return bed.spawn(
            host,
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            isolate=isolate,
        )


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
