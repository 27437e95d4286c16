"""Other libraries' ranks on a testbed's hosts: MPI's by mpiexec, and nodes of Ray."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import compressa
from benchmarks.exchange.method import Maker, Method
from compressa.testbed import Testbed
from harness.ranks import Started
from harness.start import THREADS, spawn

_HOME = Path(__file__).resolve().parents[2]  # where benchmarks are imported from
# Nobody but the testbed's own hosts reaches its links, and the two nodes share no token.
_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
# As a module of the package, torch would be imported with it: a stand-in takes the package's place.
_BARE = """
import runpy, sys, types
home, folder, name = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)
sys.path.insert(0, home)
compressa = sys.modules["compressa"] = types.ModuleType("compressa")
compressa.__path__ = [folder]
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""
# Stands in for ssh: mpiexec calls it as `[-x] HOST COMMAND...`.
_ENTER = """#!{python} -IS
import os, sys
words = [word for word in sys.argv[1:] if word != "-x"]
enter = {enter!r}[words[0]]
os.execvp(enter[0], [*enter, " ".join(words[1:])])
"""


def missing_mpi() -> str:
    """Say why MPI can not be measured here; nothing if it can."""
    if importlib.util.find_spec("mpi4py") is None or _mpiexec() is None:
        return "mpi4py or mpiexec is not installed: pip install 'compressa[mpi]'"
    return "" if os.geteuid() == 0 else "mpiexec can enter other hosts only as root"


def start_mpi(bed: Testbed, path: Path) -> Sequence[Started]:
    """Start MPI's ranks, one on every host, isolated so that they use the links."""
    mpiexec = _mpiexec()
    assert mpiexec is not None
    enter = {
        host.name: bed.command(i, ["/bin/sh", "-c"], cwd=None, isolate=True)
        for i, host in enumerate(bed.hosts)
    }
    script, log = path.with_name("enter"), path.with_name("mpi.log")
    script.write_text(_ENTER.format(python=sys.executable, enter=enter))
    script.chmod(0o700)
    names = ",".join(host.name for host in bed.hosts)
    words = [mpiexec, "-launcher", "ssh", "-launcher-exec", str(script), "-hosts", names]
    words += ["-ppn", "1", "-n", str(len(bed.hosts)), "-iface", bed.hosts[0].interface]
    words += [*_bare("rank_mpi"), str(path)]
    return [Started("mpiexec", spawn(bed, 0, words, THREADS, log, isolate=True), log)]


def missing_ray() -> str:
    """Say why Ray can not be measured here; nothing if it can."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed: pip install 'compressa[bench-peers]'"
    return ""


def start_ray(bed: Testbed, path: Path) -> Sequence[Started]:
    """Start a node of Ray on each of the first two hosts, and what measures on the first.

    They share nothing but the link: no memory, no hostname, no folder.
    """
    first, second = (host.address for host in bed.hosts[:2])
    ray = _bare("rank_ray")
    words = [[*ray, "first", str(path), first], [*ray, "second", first, second]]
    started = []
    for host, several in enumerate(words):
        log = path.with_name(f"ray{host}.log")
        process = spawn(bed, host, several, THREADS | _RAY, log, isolate=True)
        started.append(Started(f"Ray on host {host}", process, log))
    return started


class Others(NamedTuple):
    """Processes of another library on a testbed's hosts.

    Attributes:
        maker: Whose methods they carry out.
        missing: Says why they cannot be started; nothing if they can.
        start: Starts them, given hosts and the driver's socket; logs stand beside it.
        speakers: How many of them speak to the driver; 0 for one on each host.
    """

    maker: Maker
    missing: Callable[[], str]
    start: Callable[[Testbed, Path], Sequence[Started]]
    speakers: int = 0

    def owns(self, method: Method) -> bool:
        """Whether a method is theirs."""
        return method.by == self.maker


OTHERS = (Others("mpi", missing_mpi, start_mpi), Others("ray", missing_ray, start_ray, 1))


def _bare(module: str) -> list[str]:
    """Words that run a module beside this one without torch."""
    folder = str(Path(compressa.__file__).parent)
    return [sys.executable, "-c", _BARE, str(_HOME), folder, f"benchmarks.exchange.{module}"]


def _mpiexec() -> str | None:
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")
