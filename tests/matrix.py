"""Runs the tests with the lowest and the newest versions that compressa may be installed with.

    python tests/matrix.py         # on each Python found; an hour, and 5 GB at a time
    python tests/matrix.py --python 3.13 --only newest
    python tests/matrix.py --fast  # the newest of all, in a minute or two: for CI

An environment holds the wheel, and the tests run where the sources are not. What was run is kept
in docs/measurements/versions.json, and docs/versions.md says the same (a test looks).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "measurements" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
LEAST_MINOR = 11
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
TOOLS = ["pytest", "pytest-timeout", "hypothesis", "zstandard", "jinja2", "markdown-it-py"]
SHOWN = [
    *("torch", "numpy", "numba", "annotated-types", "pydantic", "safetensors", "tomli-w", "typer"),
    "rich",
]
SOURCES = ["compressa", "kernels", "schedulers", "pyproject.toml", "README.md", "LICENSE"]
TREE = [
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "harness",
    "experiments",
    "pyproject.toml",
    "README.md",
]  # what tests read
FAST = ["test_config_[hlmnrs]*.py", "test_compressors_facts.py"]  # but none on ranks
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # a machine may have one core
}
FULL = [
    *FAST,
    "test_cli_co*.py",
    "test_checkpoint_*.py",
    "test_conformance_allocations.py",
    "test_engine_groups.py",
    "test_fsdp*_ranks.py",
    "test_hook_*.py",
    "test_overlap*.py",
    "test_re*_ranks.py",
    "test_replicas.py",
]


@dataclass(frozen=True)
class Record:
    """What was run in one environment.

    Attributes:
        python: Its version.
        which: "lowest" or "newest".
        date: When, in UTC.
        versions: Of the packages that compressa depends on.
        tests: Which; none for all of `FULL`.
        outcome: How many of them, and of hooked steps, "passed", "failed" and so on.
    """

    python: str
    which: str
    date: str
    versions: dict[str, str]
    tests: list[str]
    outcome: dict[str, int]

    @property
    def minor(self) -> str:
        """As classifiers have it, such as "3.11"."""
        return ".".join(self.python.split(".")[:2])

    @property
    def held(self) -> bool:
        """Whether all tests passed."""
        return self.outcome.get("passed", 0) > 0 and not {"failed", "error"} & self.outcome.keys()


def pythons() -> dict[str, str]:
    """Find an interpreter of each minor version from 3.11 on: on the path, and pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    found: dict[int, str] = {}
    for folder in [*sorted(pyenv.glob("versions/*/bin")), *folders]:
        for file in folder.glob("python3.*"):
            minor = re.fullmatch(r"python3\.(\d+)", file.name)
            if minor and int(minor[1]) >= LEAST_MINOR and _runs(file):
                found.setdefault(int(minor[1]), str(file))
    return {f"3.{minor}": found[minor] for minor in sorted(found)}


def _runs(python: Path) -> bool:
    """Whether it is more than a stand-in, and can make environments."""
    test = subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True)
    return test.returncode == 0


class Environment:
    """A virtual environment with the wheel.

    Args:
        folder: Where it is to be.
        python: The interpreter.
        wheel: What is to be tested.
        which: "lowest" or "newest".
    """

    def __init__(self, folder: Path, python: str, wheel: Path, which: str) -> None:
        self.python = folder / "bin" / "python"
        self.mpiexec = self.python.with_name("mpiexec")
        _uv("venv", "--python", python, str(folder))
        project = str(ROOT / "pyproject.toml")
        self.install("--resolution", RESOLUTIONS[which], "-r", project)
        self.install("--no-deps", str(wheel))
        self.install(*TOOLS)

    def install(self, *what: str) -> None:
        """Install packages there."""
        _uv("pip", "install", "--no-build", "--python", str(self.python), *what)

    def run(self, *arguments: str, cwd: Path, program: Path | None = None) -> tuple[int, str]:
        """Run Python there; return its status, and what it wrote, which is shown as it comes."""
        lines = []
        with subprocess.Popen(
            [program or self.python, *arguments],
            cwd=cwd,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | _OPEN_MPI,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        return process.returncode, "".join(lines)

    def versions(self) -> dict[str, str]:
        """Return those of Python and of what compressa depends on."""
        code = (
            "import json, platform, sys; from importlib.metadata import version; print(json.dumps("
            "{'python': platform.python_version()} | {n: version(n) for n in sys.argv[1:]}))"
        )
        output = subprocess.check_output([self.python, "-c", code, *SHOWN], text=True)
        return dict(json.loads(output))


def _uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *arguments], check=True)


def copied(names: Sequence[str], folder: Path) -> Path:
    """Copy files and folders of this tree, without what was made from them."""
    folder.mkdir()
    for name in names:
        if (ROOT / name).is_dir():
            made = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=made)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this tree."""
    _uv("build", "--wheel", "--out-dir", str(folder), str(copied(SOURCES, folder / "sources")))
    return next(folder.glob("*.whl"))


def run_tests(
    environment: Environment, tree: Path, patterns: Sequence[str], without: str
) -> Counter[str]:
    """Train by torchrun and Open MPI, and run tests; return how many came to which end."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    status, _ = environment.run(*launch, "tests/_hooked_step.py", cwd=tree)
    outcome = Counter({"failed" if status else "passed": 1})
    files = sorted({str(f.relative_to(tree)) for p in patterns for f in tree.glob(f"tests/**/{p}")})
    options = ["-q", "-p", "no:cacheprovider", "-m", f"not ({without})"]
    status, text = environment.run("-m", "pytest", *options, *files, cwd=tree)
    for number, end in re.findall(r"(\d+) (passed|failed|skipped|error)", text.splitlines()[-1]):
        outcome[end] += int(number)
    outcome["error"] += status not in (0, 1)
    outcome["passed" if trains_over_open_mpi(environment, tree) else "failed"] += 1
    return +outcome


def trains_over_open_mpi(environment: Environment, tree: Path) -> bool:
    """Run the example of MPI by Open MPI; where tests are developed there is MPICH."""
    environment.install("mpi4py", "openmpi")
    words = ["-n", "2", str(environment.python), "examples/mpi.py"]
    status, text = environment.run(*words, cwd=tree, program=environment.mpiexec)
    return status == 0 and "2 ranks: " in text


def run_in(folder: Path, python: str, which: str, tests: Sequence[str]) -> Record:
    """Return what came out in an environment, which is there for so long; no tests are all."""
    wheel = next(folder.glob("*.whl"), None) or build_wheel(folder)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        environment = Environment(Path(name) / "env", python, wheel, which)
        versions = environment.versions()
        print(f"{which}: {versions}", flush=True)
        tree = copied(TREE, Path(name) / "tree")
        if not tests:
            environment.run("-m", "compressa.kernels.compile", cwd=tree)
        without = "ranks or netns or alone" if tests is FAST else "netns or alone"
        outcome = run_tests(environment, tree, tests or FULL, without)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return Record(versions.pop("python"), which, date, versions, list(tests), dict(outcome))


def read_records() -> list[Record]:
    """Return what is committed."""
    return [Record(**raw) for raw in json.loads(RECORDS.read_text(encoding="utf-8"))]


def keep(record: Record) -> None:
    """Write a record down, in place of the one before it, and the page."""
    others = [r for r in read_records() if (r.minor, r.which) != (record.minor, record.which)]
    records = sorted([*others, record], key=lambda r: ([*map(int, r.minor.split("."))], r.which))
    RECORDS.write_text(json.dumps([asdict(r) for r in records], indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(records), encoding="utf-8")


def page(records: Sequence[Record]) -> str:
    """Return docs/versions.md."""
    titles = ["Python", *SHOWN, "tests", "passed", "failed", "skipped", "on"]
    rows = [titles, ["---"] * len(titles)]
    for record in records:
        out = Counter(record.outcome)
        counts = map(str, (out["passed"], out["failed"] + out["error"], out["skipped"]))
        tests = ", ".join(f"`{name}`" for name in record.tests) or "all"
        shown = [record.versions.get(name, "") for name in SHOWN]
        rows.append([f"{record.python}, {record.which}", *shown, tests, *counts, record.date])
    return _PAGE.format(table="\n".join(f"| {' | '.join(row)} |" for row in rows))


_PAGE = """# The versions that were tried

`make matrix` installs the wheel with the lowest versions that `pyproject.toml` declares and with
the newest that there are, on every Python it finds, and runs the tests of the hook, of ranks, of
configuration and of the pages on it, or some of them, and a step with a hook on two ranks. What
came out:

{table}

With torch 2.9 and 2.10 Gloo itself writes "[Gloo] Rank 0 is connected to ..." to standard output
whenever a process group is made, and takes no setting against it; 2.13 and 2.15 do not.

Made by `tests/matrix.py`; CI runs the fast part of it, on the newest Python it finds.
"""


def main() -> int:
    """Run what is asked for; 1 if any of it fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fast", action="store_true", help="what CI runs, and keeps no record of")
    parser.add_argument("--python", action="append", help="such as 3.13; may be given again")
    parser.add_argument("--only", choices=list(RESOLUTIONS))
    parser.add_argument("--tests", nargs="+", default=[], help="files in place of all")
    options = parser.parse_args()
    found, tests = pythons(), FAST if options.fast else options.tests
    which = [options.only] if options.only else list(RESOLUTIONS)
    wanted = [(version, end) for version in options.python or found for end in which]
    held = []
    with tempfile.TemporaryDirectory(prefix="compressa-matrix-") as name:
        for version, end in [(list(found)[-1], "newest")] if options.fast else wanted:
            record = run_in(Path(name), found[version], end, tests)
            held.append(record.held)
            if not options.fast:
                keep(record)
    return 0 if held and all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
