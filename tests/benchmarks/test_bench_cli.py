"""`python -m benchmarks kernels`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from benchmarks.__main__ import app
from benchmarks.kernels import CASES, Measurement, scaling
from compressa.compressors import COMPRESSORS
from compressa.errors import BackendUnavailable, ConfigError


def run(*words: str) -> Result:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_chosen_cases_are_measured_shown_and_written(tmp_path: Path) -> None:
    file = tmp_path / "int8.json"
    said = run("kernels", "--elems", "2e4", "--case", "int8*", "--json", str(file))
    assert said.exit_code == 0
    names = ["int8", "int8 with residual", "int8 decode and add"]
    rows = [found for found in Measurement.read(file).rows if found.metric == "time"]
    assert list(dict.fromkeys(found.case for found in rows)) == [
        f"{name} @ 20000" for name in names
    ]
    for text in (
        *names,
        "20,000",
        "torch operations",
        "bare loop",
        "of 0.85",
        "Targets hold at 200,000,000",
    ):
        assert text in said.stdout


def test_what_is_not_there_yet_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: row for name, row in COMPRESSORS.items() if name != "int4"}
    monkeypatch.setattr("benchmarks.kernels.cases.COMPRESSORS", others)
    said = run("kernels", "--elems", "1000", "--case", "int4*")
    assert "Not there yet: int4, int4 with residual, int4 decode and add." in said.stdout
    assert "Not there yet" not in run("kernels", "--elems", "1000", "--case", "int8").stdout


def test_scaling_shows_fixed_costs_and_draws_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "SIZES", (10_000, 20_000))
    words = ("--elems", "1000", "--case", "int8*", "--json", str(tmp_path / "out.json"))
    said = run("kernels", "--scaling", *words)
    assert "microseconds on 1,024 elements" in said.stdout
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert len(Measurement.read(tmp_path / "out.json").rows) > 3


def test_a_plot_needs_a_file_and_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="say where with --json"):
        run("kernels", "--scaling")
    monkeypatch.setattr(scaling, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"compressa\[experiments\]"):
        run("kernels", "--scaling", "--json", str(tmp_path / "out.json"))
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("elems", ["0", "-5", "0.5", "inf", "nan"])
def test_a_wrong_number_of_elements_is_refused(elems: str) -> None:
    with pytest.raises(ConfigError, match="is no number of elements"):
        run("kernels", "--elems", elems)


def test_a_pattern_without_a_match_is_refused_with_all_names() -> None:
    with pytest.raises(ConfigError, match="no name matches") as caught:
        run("kernels", "--case", "int9*")
    for case in CASES:
        assert case.name in str(caught.value)


def test_fewer_than_seven_samples_are_refused() -> None:
    assert run("kernels", "--repeats", "6").exit_code == 2


def test_the_help_has_an_example() -> None:
    assert "Example: python -m benchmarks kernels" in run("kernels", "--help").stdout
