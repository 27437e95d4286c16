"""Run `mypy --strict` over the package as it is installed: python tests/typecheck.py.

mypy does not follow the mapping of the two top-level folders to sub-packages, so they are linked
together in a temporary folder first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def link_package(folder: Path) -> None:
    """Lay the three source folders out as one package, and what lies beside it."""
    package = folder / "compressa"
    package.mkdir()
    for source in (ROOT / "compressa").iterdir():
        (package / source.name).symlink_to(source)
    (package / "kernels").symlink_to(ROOT / "kernels")
    (package / "schedulers").symlink_to(ROOT / "schedulers")
    for beside in ("benchmarks", "harness", "website"):
        (folder / beside).symlink_to(ROOT / beside)


def run_mypy() -> int:
    """Check package, harness, benchmarks and website, then the experiments; return the status."""
    config = ["--config-file", str(ROOT / "pyproject.toml")]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    with tempfile.TemporaryDirectory() as folder:
        link_package(Path(folder))
        command = [sys.executable, "-m", "mypy", "--strict", *config, *cache]
        command += ["-p", "compressa", "-p", "harness", "-p", "benchmarks", "-p", "website"]
        scripts = str(ROOT / "experiments")
        environment = {"MYPYPATH": scripts, "PATH": "/usr/bin:/bin"}
        package = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
        # Else the root's __init__.py would make the scripts a part of a package.
        bases = ["--explicit-package-bases", scripts]
        command = [sys.executable, "-m", "mypy", "--strict", *config, *cache, *bases]
        environment["MYPYPATH"] = f"{folder}:{scripts}"
        experiments = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    return package or experiments


if __name__ == "__main__":
    sys.exit(run_mypy())
