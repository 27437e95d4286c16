"""A script beside a clone that is called compressa imports the package that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typecheck import link_package

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """\
import compressa
from compressa.kernels import philox
from compressa.schedulers import POLICIES

assert compressa.register_comm_hook and compressa.Config
print(compressa.__file__)
"""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder with a script and, as `git clone` leaves it, the folder compressa."""
    clone = tmp_path / "compressa"
    clone.mkdir()
    shutil.copy(ROOT / "__init__.py", clone)
    for name in ("compressa", "kernels", "schedulers", "tests"):
        (clone / name).symlink_to(ROOT / name)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def start(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in the folder; `path` stands for PYTHONPATH."""
    rest = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=rest | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_package_of_this_environment_is_imported(beside: Path) -> None:
    done = start(beside, "train.py")
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(beside)


def test_a_wheel_s_package_is_imported(beside: Path) -> None:
    site = beside / "site-packages"
    site.mkdir()
    link_package(site)
    done = start(beside, "train.py", path=str(site))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "compressa" / "__init__.py")


def test_the_command_may_be_started_beside_it(beside: Path) -> None:
    done = start(beside, "-m", "compressa", "--help")
    assert done.returncode == 0, done.stderr
    assert "Gradient compression" in done.stdout


def test_where_nothing_is_installed_the_fix_is_named(beside: Path) -> None:
    done = start(beside, "-S", "train.py")  # without site-packages
    assert done.returncode == 1
    fix = f"compressa is not installed, only cloned: python -m pip install -e '{beside}/compressa'"
    assert done.stderr.splitlines()[-1] == f"ImportError: {fix}"
