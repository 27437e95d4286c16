"""Whatever compresses is in the contract table, exported, documented and under test."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import get_type_hints

import pytest
from compressor_cases import ALL

import compressa.aggregators
import compressa.codecs
from compressa.codecs import Codec
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS, Entry
from compressa.testing.fact_checks import check_round_trips

PACKAGES = (compressa.codecs, compressa.aggregators)
CLASSES = {row.compressor for row in COMPRESSORS.values()}


def compressors_on_disk() -> Iterator[type[Compressor]]:
    """Yield every class that can be made and is defined in a module of the two packages."""
    for package in PACKAGES:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for kind in vars(importlib.import_module(module.name)).values():
                own = inspect.isclass(kind) and kind.__module__ == module.name
                if own and issubclass(kind, Compressor) and not inspect.isabstract(kind):
                    yield kind


def is_base(kind: type[Compressor]) -> bool:
    """Whether a class only exists to be derived from, in a private module or of a contract."""
    private = kind.__module__.rpartition(".")[2].startswith("_")
    return private or "name" not in vars(kind)


def is_wrapper(kind: type[Compressor]) -> bool:
    """Whether a class goes round another compressor, and so is no choice by itself."""
    hints = get_type_hints(kind)
    fields = (hints[field.name] for field in dataclasses.fields(kind))
    return any(inspect.isclass(field) and issubclass(field, Compressor) for field in fields)


def test_every_compressor_is_in_the_table_or_part_of_one_that_is() -> None:
    for kind in compressors_on_disk():
        if kind in CLASSES or is_base(kind) or is_wrapper(kind):
            continue
        home = importlib.import_module(kind.__module__)
        main = [row for row in CLASSES if row.__module__ == kind.__module__]
        assert main, f"{kind.__name__} is in no row, nor is anything else of {home.__name__}"
        exported = [p.__name__ for p in PACKAGES if kind.__name__ in p.__all__]
        assert not exported, f"{kind.__name__} is exported by {exported}, but in no row"


@pytest.mark.parametrize("name", COMPRESSORS)
def test_names_are_those_of_rows_files_and_exports(name: str) -> None:
    kind = COMPRESSORS[name].compressor
    assert kind.name == name
    assert kind.__module__.rpartition(".")[2] == name, "a file is named as its algorithm"
    if issubclass(kind, Codec):
        assert kind.__name__ in compressa.codecs.__all__
        assert getattr(compressa.codecs, kind.__name__) is kind


def test_wire_ids_are_distinct() -> None:
    kinds = [kind for kind in compressors_on_disk() if issubclass(kind, Codec)]
    ids = {kind.name: kind.wire_id for kind in kinds if not is_base(kind)}
    assert len(set(ids.values())) == len(ids), ids


@pytest.mark.parametrize("name", COMPRESSORS)
def test_docstrings_say_what_goes_over_the_wire_and_how_it_errs(name: str) -> None:
    kind = COMPRESSORS[name].compressor
    module = inspect.getdoc(inspect.getmodule(kind)) or ""
    text = inspect.getdoc(kind) or ""
    assert module
    assert "Example:" in text
    assert ">>>" in text
    if issubclass(kind, Codec):
        assert "Wire format" in text
        assert "Bias" in text
    fields = list(inspect.signature(kind).parameters)
    assert not fields or "Args:" in text
    assert all(f"{field}:" in text for field in fields)


@pytest.mark.parametrize("row", COMPRESSORS.values(), ids=COMPRESSORS)
def test_rows_have_defaults_and_one_sentence(row: Entry) -> None:
    assert isinstance(row.compressor(), Compressor)
    assert row.summary.endswith(".")
    assert row.summary[0].isupper()
    assert row.paper or row.compressor.name == "none"


@pytest.mark.parametrize("compressor", ALL.values(), ids=ALL)
def test_what_a_configuration_or_a_repr_says_makes_the_same_compressor(
    compressor: Compressor,
) -> None:
    check_round_trips(compressor)
