# python tests/gpu_bundle.py FOLDER [PYTHON]
"""Bring the tree to a machine that has a GPU, torch, CuPy and numba, but no index of packages.

Here, `python tests/gpu_bundle.py FOLDER 3.12` fills a folder with the wheels that such a machine
lacks, for its version of Python. There, `tests/gpu.py --wheels FOLDER` imports them, and this tree
as it is, from a folder of its own; nothing is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MISSING = (
    "pydantic",
    "annotated-types",
    "safetensors",
    "tomli-w",
    "typer",
    "rich",
    "pytest-timeout",
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
MOST_BYTES = 60 << 20
_ALWAYS = {"typing_extensions"}  # torch is content with older ones than pydantic
_PARTS = {"kernels": "kernels", "schedulers": "schedulers"}  # of the package, beside it in the tree


def fill(folder: Path, python: str) -> list[Path]:
    """Fill a folder with wheels for a version of Python on Linux, such as "3.12".

    Raises:
        RuntimeError: The index has none, or they are larger than what is carried easily.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    for platform in PLATFORMS:
        options += ["--platform", platform]
    options += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(folder), "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, *MISSING]
    if subprocess.run(command, check=False).returncode:
        raise RuntimeError(f"pip found no wheels for Python {python}")
    wheels = sorted(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    if size > MOST_BYTES:
        raise RuntimeError(f"{size >> 20} MiB of wheels are more than {MOST_BYTES >> 20}")
    return wheels


@contextmanager
def importable(wheels: Path | None = None) -> Iterator[Path]:
    """Have a folder for this process and its children that holds the tree, and wheels unpacked.

    Args:
        wheels: A folder of wheels; those of packages that this Python has are left alone.

    Yields:
        The folder; children that run there find nothing of the same name elsewhere.

    Raises:
        RuntimeError: A wheel is for another Python.
    """
    with tempfile.TemporaryDirectory(prefix="compressa-gpu-") as name:
        site, before = Path(name), os.environ.get("PYTHONPATH")
        for wheel in sorted(wheels.glob("*.whl")) if wheels else ():
            _unpack(wheel, site)
        _link_tree(site)
        sys.path.insert(0, name)
        os.environ["PYTHONPATH"] = os.pathsep.join([name, *([before] if before else [])])
        try:
            yield site
        finally:
            sys.path.remove(name)
            del os.environ["PYTHONPATH"]
            os.environ |= {} if before is None else {"PYTHONPATH": before}


def _unpack(wheel: Path, site: Path) -> None:
    package, _, python, _, _ = wheel.stem.split("-")
    if package not in _ALWAYS and _is_installed(package):
        return
    major, minor = sys.version_info[:2]
    if f"cp{major}{minor}" not in python and "py3" not in python and "abi3" not in wheel.stem:
        raise RuntimeError(
            f"{wheel.name} is not for this Python, {major}.{minor}; make the bundle with "
            f"`make gpu-bundle GPU_PYTHON={major}.{minor}`"
        )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _link_tree(site: Path) -> None:
    """Make of links the package that an installation would be, beside it what measures it."""
    package = site / "compressa"
    package.mkdir()
    for entry in (ROOT / "compressa").iterdir():
        (package / entry.name).symlink_to(entry)
    for inner, folder in _PARTS.items():
        (package / inner).symlink_to(ROOT / folder)
    for beside in ("benchmarks", "harness"):
        (site / beside).symlink_to(ROOT / beside)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = site / f"compressa-{known['version']}.dist-info"
    facts.mkdir()
    text = f"Metadata-Version: 2.1\nName: compressa\nVersion: {known['version']}\n"
    (facts / "METADATA").write_text(text, encoding="utf-8")


def main() -> int:
    """Fill the folder, and say with what."""
    folder, python = Path(sys.argv[1]), (sys.argv[2:] or ["3.12"])[0]
    try:
        wheels = fill(folder, python)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    size = sum(wheel.stat().st_size for wheel in wheels) / (1 << 20)
    print(f"{folder}: {len(wheels)} wheels for Python {python}, {size:.1f} MiB")
    print(f"On the machine with the GPU: python tests/gpu.py --wheels {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
