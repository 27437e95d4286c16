"""The walk of a gradient is counted, and stays short."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from _between_hosts import own_testbeds, warm_ranks
from _ranks import Group
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.walk import ELEMS, JUDGED_ELEMS, Header, Row, WalkMeasurement, shown, verdicts
from benchmarks.walk_rank import Recorder, walked
from compressa.errors import ConfigError
from compressa.machine import now
from harness.runner import as_page

__all__ = ["own_testbeds", "warm_ranks"]
FEW, MANY = 1 << 12, 1 << 16  # elements: encoded by the thread that sends, and by another one
MOST_CALLS = {FEW: 300, MANY: 400}
MOST_FILES, MOST_CHANGES = 35, 8


def walk_of(elems: int) -> tuple[int, int, int, int]:
    """Return calls, those of the library, files and changes of thread."""
    walk, changes = walked(elems)
    return len(walk.calls), walk.own, walk.own_files, changes


def called() -> None:
    """Something to be counted."""


def call_there_and_here() -> None:
    """Call on another thread, then on this one."""
    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    called()


def test_calls_of_other_threads_count_and_those_outside_of_the_library_here_do_not() -> None:
    recorder = Recorder()
    with recorder.installed():
        walk = recorder.walk(call_there_and_here)
    names = [code.co_name for _, code in walk.calls]
    assert names.count("called") == 1
    assert (walk.own, walk.own_files, walk.changes) == (0, 0, 0)


@pytest.mark.ranks
@pytest.mark.alone  # a thread that waits for a core looks what it may do meanwhile
@pytest.mark.parametrize("elems", [FEW, MANY])
def test_a_gradient_walks_through_few_calls_files_and_threads(two: Group, elems: int) -> None:
    for calls, own, files, changes in two.run(walk_of, elems=elems):
        assert own < calls <= MOST_CALLS[elems]
        assert files <= MOST_FILES
        assert 2 <= changes <= MOST_CHANGES


def row(elems: int = JUDGED_ELEMS, changes: int = 8) -> Row:
    return Row(
        elems=elems,
        own=430,
        files=2,
        changes=changes,
        step_s=1e-3,
        cpu_s=5e-4,
        functions={"a.py: f": 400, "(b.py): g": 70, "a.py: h": 30},
        timestamp=now(),
    )


def measured(*rows: Row) -> WalkMeasurement:
    return WalkMeasurement(header=Header.here(), rows=list(rows))


def test_the_smallest_gradient_is_judged_alone() -> None:
    assert [verdict.met for verdict in verdicts(measured(row(), row(ELEMS[-1], 99)))] == [True] * 3
    assert [verdict.met for verdict in verdicts(measured(row(changes=9)))] == [True, True, False]
    assert not list(verdicts(measured(row(ELEMS[-1]))))


def test_calls_are_shown_by_file_or_by_function() -> None:
    assert "\n| a.py | 430 |\n| (b.py) | 70 |\n" in as_page(shown(measured(row())))[-1]
    assert "\n| a.py: f | 400 |\n" in as_page(shown(measured(row()), functions=True))[-1]


def test_a_parameter_that_has_no_whole_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="100 is no multiple of 16"):
        CliRunner().invoke(app, ["walk", "--elems", "100"], catch_exceptions=False)


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
def test_it_says_what_a_step_of_real_processes_calls(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = ["--elems", str(FEW), "--functions", "--json", str(file)]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(app, ["walk", *options])
    assert result.exit_code == 0, result.exception or result.output
    (found,) = WalkMeasurement.read(file).rows
    assert 0 < found.own < found.calls == sum(found.by_file.values())
    assert found.files == sum(not name.startswith("(") for name in found.by_file)
    assert f"{found.calls}  <= 500" in result.output
    assert "compressa/engine/engine.py: Engine." in result.output
