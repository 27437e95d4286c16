"""What pages of benchmarks show: where rows are from, and all of what is drawn from them."""

from __future__ import annotations

import doctest
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import website
from benchmarks.schedule.plan import DDP
from benchmarks.schedule.training import ELEMS, LAYERS
from compressa.errors import ConfigError
from website import hooks, measured, navigation, reference, times, trainings
from website.committed import MEASUREMENTS

DOCS = MEASUREMENTS.parent
MARKS = {file: hooks.MARK.findall(file.read_text(encoding="utf-8")) for file in DOCS.rglob("*.md")}


@pytest.mark.parametrize("name", measured.KINDS)
def test_figures_say_where_they_are_from(name: str) -> None:
    block, rows = measured.block(name), measured.KINDS[name].read(MEASUREMENTS / f"{name}.json")
    assert rows.when_and_where in block
    assert f"(site:measurements/{name}.json)" in block
    assert block.count("<figure") >= 2


@pytest.mark.parametrize("name", measured.KINDS)
def test_a_page_of_measurements_has_more_pictures_than_rows_of_a_table(name: str) -> None:
    assert measured.block(name).count("\n|") < 50


@pytest.mark.parametrize("folder", trainings.FOLDERS)
def test_trainings_are_drawn_with_every_compressor_that_trained(folder: str) -> None:
    block, found = trainings.block(folder), trainings.results(folder)
    assert found.rows()[0].machine in block
    assert f"(site:measurements/{folder}.jsonl)" in block
    for _, compressor, _ in found.trains:
        assert f">{compressor}</text>" in block


def test_kernels_show_the_medians_of_the_file() -> None:
    (row, *_) = times.rows_of("int8")
    assert f"| int8 | {times.element_ns(row):.3f} | {row.limit_ratio:.2f} |" in measured.block(
        "kernels"
    )
    assert f">{times.element_ns(row):.2f} ns<" in times.drawn("int8")
    assert times.drawn("demo") == ""


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernels.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="kernels"):
        measured.block("kernels", tmp_path)


def test_every_block_has_its_place_and_every_place_its_block() -> None:
    used = [name for marks in MARKS.values() for name in marks]
    assert len(used) == len(set(used))
    assert set(used) == set(hooks.BLOCKS)


def test_what_the_text_says_of_a_benchmark_is_what_it_runs() -> None:
    text = (DOCS / "benchmarks" / "schedule.md").read_text(encoding="utf-8")
    assert f"{LAYERS} layers ({ELEMS:,} parameters)" in text
    caps = " and ".join(f"{method.bucket_cap_mb:g}" for method in DDP)
    assert f"buckets of {caps.replace(' and ', ', ', 1)} MB" in text


def test_the_reference_has_every_public_name_and_no_other() -> None:
    pages = dict(reference.pages())
    for module in ("compressa", "compressa.kernels", "compressa.optim"):
        text = pages[f"reference/{module}.md"]
        named = re.findall(rf"^::: {re.escape(module)}\.(\w+)$", text, re.M)
        assert named == reference.public_names(module)
        assert f"[`{module}`]({module}.md)" in pages["reference/index.md"]
    assert {"fsdp", "lightning"} <= set(reference.public_names("compressa.integrations"))
    assert reference.public_names("compressa.no_such_module") == []


def test_every_page_is_in_the_navigation_once() -> None:
    pages = ["index.md", "concepts/units.md", "from/horovod.md", "new.md", "compressors/int8.md"]
    assert sorted(re.findall(r"'([^']+\.md)'", str(navigation.of(pages)))) == sorted(pages)


@pytest.mark.parametrize("module", [one.name for one in pkgutil.iter_modules(website.__path__)])
def test_examples_of_the_generators_run(module: str) -> None:
    assert doctest.testmod(import_module(f"website.{module}")).failed == 0
