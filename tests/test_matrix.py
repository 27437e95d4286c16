"""What is said of versions is what was run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import matrix
import pytest

PROJECT = tomllib.loads((matrix.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_page_shows_what_was_run() -> None:
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.page(matrix.read_records())


def test_the_classifiers_name_the_pythons_on_which_it_held() -> None:
    held = {record.minor for record in matrix.read_records() if record.held}
    held -= {record.minor for record in matrix.read_records() if not record.held}
    named = re.findall(r":: Python :: (\d\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert set(named) == held


def test_the_lowest_versions_are_those_that_were_run() -> None:
    lowest = [record for record in matrix.read_records() if record.which == "lowest"]
    assert lowest
    for requirement in PROJECT["dependencies"]:
        name, _, least = requirement.partition(">=")
        for record in lowest:
            assert f"{record.versions[name]}.".startswith((f"{least}.", f"{least}+")), requirement


def test_a_run_that_failed_is_not_one_that_held() -> None:
    record = matrix.read_records()[0]
    for outcome in ({}, {"passed": 3, "failed": 1}, {"error": 1}, {"skipped": 2}):
        assert not matrix.Record(**{**vars(record), "outcome": outcome}).held
    assert matrix.Record(**{**vars(record), "outcome": {"passed": 3, "skipped": 1}}).held


def test_interpreters_are_found_from_3_11_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interpreter(folder: str, name: str, status: int = 0) -> str:
        file = tmp_path / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\nexit {status}\n")
        file.chmod(0o755)
        return str(file)

    interpreter("bin", "python3.10")
    interpreter("bin", "python3.12", status=127)  # a stand-in, as pyenv's shims are
    interpreter("bin", "python3.13-config")
    own, other = interpreter("bin", "python3.11"), interpreter("versions/3.13.0/bin", "python3.13")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert matrix.pythons() == {"3.11": own, "3.13": other}


def test_every_pattern_finds_tests() -> None:
    tests = Path(matrix.__file__).parent
    assert [pattern for pattern in matrix.FULL if not [*tests.rglob(pattern)]] == []
