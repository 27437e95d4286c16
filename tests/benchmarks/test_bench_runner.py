"""What all benchmarks do alike: a file that holds what is measured so far, and tables of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_bench_records import row, whole

from benchmarks.kernels import Measurement
from compressa.errors import ConfigError
from harness.runner import as_page, measure
from harness.tables import Table, Target, laid_out, markdown


class Once:
    """Measures what it is told, and nothing more."""

    def __init__(self, found: Measurement) -> None:
        self.found = found

    def run(self) -> Iterator[str]:
        yield "it"


def test_the_file_holds_what_was_measured_when_a_run_ends_early(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    class Interrupted(Once):
        def run(self) -> Iterator[str]:
            yield "the first"
            assert not file.exists(), "nothing is measured yet"
            self.found.rows.append(row())
            yield "the second"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(Interrupted(whole().model_copy(update={"rows": []})), file)
    assert Measurement.read(file).rows == [row()]


def test_rows_that_are_not_measured_again_stay_where_a_file_is_brought_up_to_date(
    tmp_path: Path,
) -> None:
    file, again = tmp_path / "rows.json", whole().model_copy(update={"rows": [row(median=9.8)]})
    measure(Once(again), None, file)  # there is none yet
    assert Measurement.read(file).rows == again.rows
    whole().model_copy(update={"rows": [row(), row(case="int4 @ 1000")]}).write(file)
    found = measure(Once(again), None, file)
    assert found.rows == Measurement.read(file).rows == [row(case="int4 @ 1000"), row(median=9.8)]
    with pytest.raises(ConfigError, match="give one of them"):
        measure(Once(again), file, file)


def test_a_table_is_the_same_on_the_page_and_at_the_terminal() -> None:
    shown = Table("Of it", ("what", "ms", "target"), [("a|b", "1.0", "met")], frozenset({"ms"}))
    text = "| what | ms | target |\n| --- | ---: | --- |\n| a\\|b | 1.0 | met |\n"
    assert markdown(shown) == text
    empty = shown._replace(lines=[])
    assert as_page([shown, empty, "* said."]) == [f"Of it.\n\n{text}", "\\* said.\n"]
    columns = laid_out(shown).columns
    assert [(c.header, c.justify) for c in columns] == [
        ("what", "left"),
        ("ms", "right"),
        ("target", "left"),
    ]
    assert [list(c.cells) for c in columns] == [["a|b"], ["1.0"], ["[green]met[/green]"]]


@pytest.mark.parametrize(
    ("least", "reached", "met"),
    [(True, 2.0, True), (True, 1.99, False), (False, 2.0, True), (False, 2.01, False)],
)
def test_a_target_is_met_from_its_bound_on(least: bool, reached: float, met: bool) -> None:
    found = Target("it", 2.0, least, asked="{:.1f}").judged(("here",), reached, "there")
    assert found == ("it", ("here",), f"{reached:.2f}", "2.0", "there", met)
    assert Target("it", 9.0, least).judged(("here",), reached, bound=2.0).met is met
