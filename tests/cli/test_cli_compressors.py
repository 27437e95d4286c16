"""`compressa compressors` lists what there is and describes each, other packages' included."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run
from plugin_packages import install, install_page_example

from compressa.compressors import COMPRESSORS
from compressa.facts import facts
from compressa.page import page


def run_beside(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where some packages are installed."""
    code = "import sys; from compressa.cli import main; main(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, "compressors", *arguments],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_the_table_has_a_row_for_each_with_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compressors") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    rows = {words[0]: words for line in shown.out.splitlines() if (words := line.split())}
    assert set(COMPRESSORS) <= set(rows)
    own = facts(COMPRESSORS["topk"])
    due = ["topk", "codec", f"{own.ratio:.1f}", *own.busiest_text.split(), "4", "all-gather"]
    assert rows["topk"][: len(due)] == due
    assert " ".join(rows["topk"]).endswith("delta >= 0.0100; error feedback Aji & Heafield 2017")
    assert rows["powersgd"][1] == "aggregator"


def test_json_has_the_same_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compressors", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["problems"] == []
    rows = {row["name"]: row for row in shown["compressors"]}
    assert list(rows) == list(COMPRESSORS)
    assert rows["topk"]["bound"] == 0.01
    assert rows["topk"]["source"] == "compressa"


@pytest.mark.parametrize("name", COMPRESSORS)
def test_one_is_described_by_its_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compressors", name) == 0
    assert capsys.readouterr().out == page(COMPRESSORS[name], facts(COMPRESSORS[name]), "#")


def test_one_is_described_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compressors", "topk", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["wire_id"] == 6
    assert shown["hyper_parameters"]["density"]["maximum"] == 1


def test_on_a_terminal_the_page_is_laid_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert run("compressors", "topk") == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "```" not in shown
    assert "density = 0.01" in shown
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert run("compressors") == 0
    assert "all-gather" in capsys.readouterr().out


def test_a_name_that_is_none_ends_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compressors", "topkk") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith('error: "topkk" is not a compressor; must be one of "none", ')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    install_page_example(folder)
    install(folder, "failing", {"failing": "failing:Mine"}, "raise RuntimeError('boom')")
    return folder


def test_other_packages_are_listed_and_what_is_wrong_with_them_is_said(site: Path) -> None:
    done = run_beside(site)
    assert done.returncode == 0, done.stderr
    (row,) = (line.split() for line in done.stdout.splitlines() if "fixed16" in line)
    assert row[:2] == ["fixed16", "codec"]
    assert " ".join(row).endswith("error feedback fixed16 1.0")
    assert done.stderr.startswith('warning: compressor "failing" of failing 1.0 can not be imp')
    shown = json.loads(run_beside(site, "--json").stdout)
    assert shown["compressors"][-1]["source"] == "fixed16 1.0"
    assert "RuntimeError: boom" in shown["problems"][0]


def test_one_of_another_package_is_described_or_refused_with_the_reason(site: Path) -> None:
    text = run_beside(site, "fixed16").stdout
    assert text.startswith("# fixed16\n\nHalf the bytes, on a finer grid than that of")
    assert "- `block = 256`: a whole number, at least 8 and at most 65536. Elements that" in text
    assert "- From: fixed16 1.0." in text
    refused = run_beside(site, "failing")
    assert refused.returncode == 1
    assert refused.stderr.startswith('error: compressor "failing" of failing 1.0 can not be')
