"""The README's results and its picture are what the script makes of a measurement."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import readme_table
import typer
from _documents import README
from lab.records import append
from lab.svg import Bar, bars
from test_experiments_report import whole

from harness.tables import with_block

TEXT = README.read_text(encoding="utf-8")


def test_results_are_those_of_the_committed_measurement() -> None:
    stale = "run python experiments/readme_table.py"
    assert with_block(TEXT, readme_table.BLOCK, readme_table.results_block()) == TEXT, stale
    assert readme_table.PICTURE.read_text(encoding="utf-8") == readme_table.picture(), stale


def test_results_quote_numbers_machine_versions_and_date(tmp_path: Path) -> None:
    for record in whole():
        append(tmp_path, record)
    first = whole()[0]
    block = readme_table.results_block(tmp_path, first.task)
    for fact in (first.machine, first.date[:10], *first.versions.values()):
        assert fact in block
    assert "| `ddp-float32` |" in block
    assert re.search(r"\| \d+\.\d\d of \d+\.\d\d \|", block)
    again = with_block(with_block(TEXT, readme_table.BLOCK, block), readme_table.BLOCK, block)
    assert block in again
    assert again.count("<!-- results:begin -->") == 1


def test_the_picture_has_a_bar_as_long_as_each_part() -> None:
    drawn = bars("a < b", [Bar("slow", [100.0, 0.0, 300.0], "x"), Bar("fast", [50, 50, 0], "y")])
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)"', drawn)]
    parts = widths[3:]  # the first are the legend's
    assert parts == pytest.approx([105.0, 0.0, 315.0, 52.5, 52.5, 0.0])
    assert "<title>a &lt; b</title>" in drawn


def test_outdated_figures_fail_the_check_until_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme, drawn = tmp_path / "README.md", tmp_path / "steps.svg"
    readme.write_text(with_block(TEXT, readme_table.BLOCK, "typed by hand"), encoding="utf-8")
    drawn.write_text("<svg/>", encoding="utf-8")
    monkeypatch.setattr(readme_table, "README", readme)
    monkeypatch.setattr(readme_table, "PICTURE", drawn)
    with pytest.raises(typer.Exit):
        readme_table.main(readme_table.MEASUREMENT, check=True)
    readme_table.main(readme_table.MEASUREMENT)
    readme_table.main(readme_table.MEASUREMENT, check=True)
    assert readme.read_text(encoding="utf-8") == TEXT
