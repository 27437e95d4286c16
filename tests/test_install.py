"""What is said of installing: commands that are there, one index for the CPU, one address."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def pip_line(*variables: str) -> list[str]:
    """What `make install` would run to install the package."""
    command = ["make", "--dry-run", "--always-make", "install", *variables]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in shown.splitlines() if "--editable" in line)
    return line.split()


def test_make_takes_the_build_for_the_cpu_only_if_asked() -> None:
    assert f"--extra-index-url {CPU_INDEX}" in " ".join(pip_line("TORCH=cpu"))
    assert "--extra-index-url" not in pip_line()


def test_the_page_names_the_index_for_pip_and_what_uv_calls_it() -> None:
    assert f"pip install torch --index-url {CPU_INDEX}" in PAGE
    assert "make install TORCH=cpu" in PAGE
    (option, value), *_ = re.findall(r"uv pip install (--[\w-]+) (\w+)", PAGE)
    uv = str(Path(sys.executable).parent / "uv")
    shown = subprocess.run([uv, "pip", "install", "--help"], capture_output=True, text=True).stdout
    assert option in shown
    assert value == "cpu"


def test_extras_of_the_page_exist_and_torch_is_as_new_as_needed() -> None:
    named = re.search(r"an extra: (.*)", PAGE)
    assert named
    assert set(re.findall(r"\w+", named[1])) - {"or"} <= PROJECT["optional-dependencies"].keys()
    assert (
        f"PyTorch {re.findall(r'torch>=([0-9.]+)', ' '.join(PROJECT['dependencies']))[0]}" in PAGE
    )
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in PAGE


def test_all_addresses_of_the_project_are_in_one_place() -> None:
    home = PROJECT["urls"]["Homepage"]
    assert {"Source", "Issues", "Changelog", "Documentation"} <= PROJECT["urls"].keys()
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("**/*.md")]
    said = "".join(page.read_text(encoding="utf-8") for page in pages)
    links = {
        *PROJECT["urls"].values(),
        *re.findall(r"https://github\.com/compressa[^\s)>\"]*", said),
    }
    assert all(link.startswith(home) for link in links), links
    for link in links:
        _, found, path = link.partition("/main/")
        assert not found or (ROOT / path).exists(), link
