"""`compressa compressors` lists what there is and describes each, other packages' included."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import printed, refused, run
from plugin_packages import install, install_page_example, on_the_path

from compressa.compressors import COMPRESSORS
from compressa.facts import facts
from compressa.page import page


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


@pytest.fixture
def others(tmp_path: Path) -> Iterator[None]:
    """Two packages of somebody else are installed."""
    install_page_example(tmp_path)
    install(tmp_path, "failing", {"failing": "failing:Mine"}, "raise RuntimeError('boom')")
    with on_the_path(tmp_path):
        yield


@pytest.mark.usefixtures("others")
def test_other_packages_are_listed_and_what_is_wrong_with_them_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("compressors") == 0
    table = capsys.readouterr()
    (row,) = (line.split() for line in table.out.splitlines() if "fixed16" in line)
    assert row[:2] == ["fixed16", "codec"]
    assert " ".join(row).endswith("error feedback fixed16 1.0")
    assert table.err.startswith('warning: compressor "failing" of failing 1.0 can not be imp')
    shown = json.loads(printed(capsys, "compressors", "--json"))
    assert shown["compressors"][-1]["source"] == "fixed16 1.0"
    assert "RuntimeError: boom" in shown["problems"][0]


@pytest.mark.usefixtures("others")
def test_one_of_another_package_is_described_or_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(capsys, "compressors", "fixed16")
    assert text.startswith("# fixed16\n\nHalf the bytes, on a finer grid than that of")
    assert "- `block = 256`: a whole number, at least 8 and at most 65536. Elements that" in text
    assert "- From: fixed16 1.0." in text
    said = refused(capsys, "compressors", "failing")
    assert said.startswith('error: compressor "failing" of failing 1.0 can not be')
