"""Examples as a reader starts them: by their first line, from an empty folder."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def command_of(name: str) -> list[str]:
    """Read what starts an example: its first line, such as `# torchrun ... examples/ddp.py`."""
    first = (EXAMPLES / name).read_text(encoding="utf-8").partition("\n")[0]
    assert first.startswith("# "), f"{name}: the first line says how to start it"
    return shlex.split(first[2:])


def run_example(name: str, folder: Path, *more: str, timeout_s: float = 100.0) -> str:
    """Start an example by its first line, in a folder; return what it printed."""
    program, *words = command_of(name)
    words = [str(EXAMPLES.parent / w) if w.startswith("examples/") else w for w in words]
    words = [sys.executable if word == "python" else word for word in words]  # after mpiexec
    if program == "torchrun":  # a port of its own, so that examples may run side by side
        words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", *words]
    done = subprocess.run(
        [str(Path(sys.executable).parent / program), *words, *more],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{name}: {done.stdout}\n{done.stderr}"
    return done.stdout
