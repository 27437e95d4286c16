"""Examples as a reader starts them: by their first line, from an empty folder."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from _page_ranks import as_by_torchrun, run_page
from _ranks import Group, Process

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def command_of(name: str) -> list[str]:
    """Read what starts an example: its first line, such as `# torchrun ... examples/ddp.py`."""
    first = (EXAMPLES / name).read_text(encoding="utf-8").partition("\n")[0]
    assert first.startswith("# "), f"{name}: the first line says how to start it"
    return shlex.split(first[2:])


def run_example(
    name: str, folder: Path, *, python: str = sys.executable, timeout_s: float = 100.0
) -> str:
    """Start an example by its first line, in a folder; return what it printed."""
    with started(name, folder, python) as run:
        try:
            printed, errors = run.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            run.terminate()
            raise
    assert run.returncode == 0, f"{name}: {printed}\n{errors}"
    return printed


def run_on(fresh: Callable[[int], Group], name: str, folder: Path) -> str:
    """Run an example on ranks that have imported torch, as torchrun would; return what they print.

    That spares seconds a rank; examples/ddp.py and others are started by torchrun itself.
    """
    group, ranks = start_on(fresh, name, folder)
    outcomes = group.collect(ranks, 100.0)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.explain() for o in outcomes)
    return "".join(outcome.value for outcome in outcomes)


def start_on(fresh: Callable[[int], Group], name: str, folder: Path) -> tuple[Group, list[Process]]:
    """Start what `run_on` runs, in a folder."""
    program, option, size, file = command_of(name)
    assert (program, option, file) == ("torchrun", "--nproc-per-node", f"examples/{name}")
    group, path = fresh(int(size)), EXAMPLES / name
    code = [[str(path), path.read_text(encoding="utf-8")]]
    told = as_by_torchrun(int(size))
    return group, group.start(run_page, per_rank=told, folder=str(folder), code=code)


def started(name: str, folder: Path, python: str) -> subprocess.Popen[str]:
    """Start an example by its first line, in a folder."""
    program, *words = command_of(name)
    words = [str(EXAMPLES.parent / w) if w.startswith("examples/") else w for w in words]
    words = [python if word == "python" else word for word in words]  # after mpiexec
    if program == "torchrun":  # a port of its own, so that examples may run side by side
        words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", *words]
    start = python if program == "python" else str(Path(sys.executable).parent / program)
    return subprocess.Popen(
        [start, *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
