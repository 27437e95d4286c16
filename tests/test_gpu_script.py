"""`make gpu` without a GPU says so; with one, it names its file by GPU and day.

On a bare machine it needs no more than torch, CuPy, numba, pytest, hypothesis and some wheels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import gpu
import gpu_bundle
import pytest
import torch

import compressa

WITHOUT = (
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "safetensors"),
    "tomli_w",
    *("typer", "rich", "shellingham", "annotated_doc", "markdown_it", "mdurl", "pytest_timeout"),
    *("plotly", "matplotlib", "sklearn", "scikit_learn", "xdist", "pytest_xdist", "mpi4py"),
    *("zstandard", "compressa", "markdown_it_py", "__editable__", "__pycache__"),
)
BARE = """
import sys
sys.path[:] = [folder for folder in sys.path if not folder.endswith("site-packages")]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in finder.__module__]
"""
WHEELS = (
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "safetensors"),
    "tomli_w",
    *("typer", "rich", "shellingham", "annotated_doc", "markdown_it_py", "mdurl", "pytest_timeout"),
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert gpu.missing_gpu().startswith("There is no GPU here")
    assert not list(tmp_path.iterdir())


def test_a_result_is_named_by_gpu_and_day() -> None:
    when = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    assert gpu.file_name("NVIDIA H200 (SXM)", when) == "gpu-nvidia-h200-sxm-2026-01-31.json"


@pytest.fixture
def with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a GPU, and all could be imported."""

    def imports(site: Path, limit_s: float) -> Iterator[gpu.State]:
        yield {"code": 0, "failed": []}

    monkeypatch.setattr(gpu, "imports", imports)
    monkeypatch.setattr(gpu, "missing_gpu", lambda: "")
    monkeypatch.setattr(gpu, "machine", lambda: {"gpu": "One"})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "One")


def written(folder: Path) -> Any:
    (file,) = folder.glob("gpu-one-*.json")
    return gpu.json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.usefixtures("with_a_gpu")
def test_what_is_known_is_written_at_once_and_what_was_not_reached_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits: list[float] = []

    def quick(site: Path, limit_s: float) -> Iterator[gpu.State]:
        yield {"code": 0}

    def cut_off(site: Path, limit_s: float) -> Iterator[gpu.State]:
        limits.append(limit_s)
        yield {"code": 0, "files": {"first": "passed"}}
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "PARTS", {"compilation": quick, "checks": cut_off, "training": quick})
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--out", str(tmp_path), "--minutes", "2"])
    known = written(tmp_path)
    assert known["compilation"] == {"code": 0}
    assert known["checks"]["files"] == {"first": "passed"}
    assert known["not_reached"] == ["checks", "training"]
    checks, training = (gpu.SHARES[name] for name in ("checks", "training"))
    assert limits == [pytest.approx(120 * checks / (checks + training), rel=0.1)]
    assert gpu.main(["--out", str(tmp_path), "--minutes", "0"]) == 1
    assert "not reached: compilation, checks, training" in capsys.readouterr().out
    assert gpu.main(["--out", str(tmp_path), "training", "compilation"]) == 0
    assert written(tmp_path)["not_reached"] == []


def test_parts_have_shares_of_all_the_time_and_of_what_others_leave() -> None:
    assert list(gpu.SHARES) == list(gpu.PARTS)
    assert sum(gpu.SHARES.values()) == 100
    left_s, limits_s = 600.0, dict[str, float]()
    for number, name in enumerate(parts := list(gpu.PARTS)):
        limits_s[name] = gpu.share(parts[number:], left_s)
        left_s -= limits_s[name]
    assert limits_s == {name: pytest.approx(6.0 * share) for name, share in gpu.SHARES.items()}
    assert gpu.share(parts[-1:], 250.0) == 250.0
    assert gpu.share(parts[-2:], 220.0) == pytest.approx(70.0), "of training and sanitizer, 7 to 15"


@pytest.mark.usefixtures("with_a_gpu")
def test_what_a_part_has_not_reached_is_listed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut_off(site: Path, limit_s: float) -> Iterator[gpu.State]:
        yield {"code": 124, "not_reached": ["racecheck"]}

    monkeypatch.setattr(gpu, "PARTS", {"sanitizer": cut_off})
    assert gpu.main(["--out", str(tmp_path)]) == 124
    assert "not reached: sanitizer: racecheck" in capsys.readouterr().out


def test_files_of_tests_that_were_cut_off_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("one.py", "two.py", "three.py")]

    def side_by_side(commands: list[list[str]], *_: Any) -> Iterator[tuple[int, gpu.State]]:
        yield 1, {"code": 1, "output": "1 failed"}
        yield 0, {"code": 0, "output": "5 passed"}
        yield 2, {"code": 124, "output": "not begun"}

    monkeypatch.setattr(gpu, "test_files", lambda: files)
    monkeypatch.setattr(gpu, "side_by_side", side_by_side)
    *_, state = gpu.checks(tmp_path, 60)
    assert state["code"] == 124
    assert state["not_reached"] == ["three.py"]
    assert state["files"]["one.py"] == {"code": 0, "summary": "5 passed"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.timeout(300)
def test_steps_with_the_hook_are_compared_with_those_of_ddp() -> None:
    with gpu_bundle.importable() as site:
        (state,) = gpu.hook(site, 280)
    assert state["code"] == 0, state
    ddp, *ours = state["steps"]
    assert [step["method"] for step in ours] == ["none, hook", "int8, hook"]
    assert ddp["of_ddp"] == 1.0
    for step, verdict, most in zip(ours, state["verdicts"], (1.01, 1.03), strict=True):
        assert len(step["rounds_s"]) == len(ddp["rounds_s"]) > 5
        found = sorted(a / b for a, b in zip(step["rounds_s"], ddp["rounds_s"], strict=True))
        assert found[0] <= step["of_ddp"] <= found[-1]
        assert verdict["at"] == step["method"]
        assert verdict["met"] == (step["of_ddp"] <= most)


def packed(package: str, folder: Path) -> None:
    """Make a wheel of an installed package again."""
    found = distribution(package)
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    with zipfile.ZipFile(folder / f"{package}-{found.version}-{tag}-none-any.whl", "w") as wheel:
        for file in found.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                wheel.write(str(found.locate_file(file)), str(file))


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that has what a bare machine has, and no more."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    folders = {Path(folder).resolve() for folder in sys.path if folder.endswith("site-packages")}
    for entry in (entry for folder in folders for entry in folder.iterdir()):
        missing = entry.name.split("-")[0].split(".")[0] in WITHOUT
        if not missing and entry.suffix != ".pth" and not (libraries / entry.name).exists():
            (libraries / entry.name).symlink_to(entry)
    (libraries / "sitecustomize.py").write_text(BARE, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(libraries)}


def run_there(machine: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(gpu.__file__)), *options]
    return subprocess.run(
        command, env=machine, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.timeout(300)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_bare_machine_needs_nothing_but_the_folder_of_wheels(
    machine: dict[str, str], tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for package in WHEELS:
        packed(package, wheels)
    for package in ("pydantic_core", "rich"):
        without = subprocess.run(
            [sys.executable, "-c", f"import {package}"],
            env=machine,
            capture_output=True,
            check=False,
        )
        assert f"No module named '{package}'" in without.stderr.decode()
    done = run_there(machine, "--wheels", str(wheels), "--out", str(tmp_path))
    assert "There is no GPU here" in done.stderr, done.stdout + done.stderr
    assert done.returncode == 1


def test_what_can_not_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "training.py"
    script.write_text("")
    monkeypatch.setattr(gpu, "IMPORT_ALL", "import nothing_of_this_name")
    monkeypatch.setattr(gpu, "PYTEST", (sys.executable, "-c", ""))
    monkeypatch.setattr(gpu, "TRAINING", script)
    assert gpu.main(["--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "No module named 'nothing_of_this_name'" in said.out
    assert "can not be imported" in said.err


def test_a_wheel_for_another_python_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "some_thing-1.0-cp27-cp27m-linux_x86_64.whl", "w"):
        pass
    assert gpu.main(["--wheels", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "some_thing-1.0" in said
    assert f"GPU_PYTHON={sys.version_info[0]}.{sys.version_info[1]}" in said


def test_what_is_kept_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    path, site = tmp_path / "found.json", tmp_path / "site"
    found = {"output": f"{gpu.ROOT}/tests/gpu.py:1: and {site}/compressa/config.py"}
    gpu.keep(found, path, site)
    assert json.loads(path.read_text()) == {"output": "tests/gpu.py:1: and compressa/config.py"}


def test_the_tree_is_importable_as_it_is(tmp_path: Path) -> None:
    before = list(sys.path), os.environ.get("PYTHONPATH")
    with gpu_bundle.importable() as site:
        code = "import compressa.kernels, compressa.schedulers; print(compressa.__version__)"
        code += "; print(compressa.__file__, compressa.kernels.__file__)"
        done = gpu.said([sys.executable, "-c", code], 60, site)
    version, folders = done["output"].splitlines()
    assert version == compressa.__version__
    assert all(folder.startswith(str(site)) for folder in folders.split())
    assert (list(sys.path), os.environ.get("PYTHONPATH")) == before
