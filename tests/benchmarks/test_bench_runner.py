"""What all benchmarks do alike: a file that holds what is measured so far, and tables of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_bench_records import row, whole

from benchmarks.kernels import Measurement
from benchmarks.runner import measure
from compressa.errors import ConfigError
from harness.tables import Table, laid_out, markdown


def test_the_file_holds_what_was_measured_when_a_run_ends_early(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    found = whole().model_copy(update={"rows": []})

    def doing() -> Iterator[str]:
        yield "the first"
        assert not file.exists(), "nothing is measured yet"
        found.rows.append(row())
        yield "the second"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(doing(), lambda: found, file)
    assert Measurement.read(file).rows == [row()]


def test_rows_that_are_not_measured_again_stay_where_a_file_is_brought_up_to_date(
    tmp_path: Path,
) -> None:
    file, again = tmp_path / "rows.json", whole().model_copy(update={"rows": [row(median=9.8)]})
    measure(iter(["it"]), lambda: again, None, file)  # there is none yet
    assert Measurement.read(file).rows == again.rows
    whole().model_copy(update={"rows": [row(), row(case="int4 @ 1000")]}).write(file)
    found = measure(iter(["it"]), lambda: again, None, file)
    assert found.rows == Measurement.read(file).rows == [row(case="int4 @ 1000"), row(median=9.8)]
    with pytest.raises(ConfigError, match="give one of them"):
        measure(iter(()), lambda: again, file, file)


def test_a_table_is_the_same_on_the_page_and_at_the_terminal() -> None:
    shown = Table("Of it", ("what", "ms", "target"), [("a", "1.0", "met")], frozenset({"ms"}))
    assert markdown(shown) == "| what | ms | target |\n| --- | ---: | --- |\n| a | 1.0 | met |\n"
    columns = laid_out(shown).columns
    assert [(c.header, c.justify) for c in columns] == [
        ("what", "left"),
        ("ms", "right"),
        ("target", "left"),
    ]
    assert [list(c.cells) for c in columns] == [["a"], ["1.0"], ["[green]met[/green]"]]
