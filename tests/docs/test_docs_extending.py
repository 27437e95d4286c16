"""extending.md: the compressor that it adds conforms, and would not with a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from _documents import DOCS, block_with
from test_codecs_golden import X

from compressa.codecs import Contraction
from compressa.compressors import COMPRESSORS, Entry, Family
from compressa.config.choices import choice_model
from compressa.facts import facts
from compressa.page import page
from compressa.testing import check_codec
from compressa.testing.codec_checks import encoded

PAGE = DOCS / "extending.md"


def execute(part: str, names: dict[str, Any]) -> None:
    """Run the one block that has some text, without this file's `from __future__`."""
    code = block_with(PAGE, "python", part).code
    exec(compile(code, PAGE.name, "exec", dont_inherit=True), names)


@pytest.fixture(scope="module")
def added() -> dict[str, Any]:
    """The names of the module with the compressor."""
    names: dict[str, Any] = {"__name__": "fixed16"}
    execute("class Fixed16", names)
    return names


def test_the_test_kit_refuses_it_with_a_fault(added: dict[str, Any]) -> None:
    class Boastful(added["Fixed16"]):
        def bias(self, elems: int) -> Contraction:
            return Contraction(1.0)

    class Forgetful(added["Fixed16"]):
        def decode_add(self, payload: torch.Tensor, out: torch.Tensor, *more: Any) -> None:
            self.check(payload, out.numel())

    class Wasteful(added["Fixed16"]):
        def wire_bytes(self, elems: int) -> int:
            return super().wire_bytes(elems) + 8

    for faulty in (Boastful, Forgetful, Wasteful):
        with pytest.raises((AssertionError, RuntimeError)):
            check_codec(faulty())


def test_a_row_is_enough_to_configure_it(
    added: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = block_with(PAGE, "python", "Entry(").code
    row = eval(line, dict(added) | {"Entry": Entry, "Family": Family})
    monkeypatch.setitem(COMPRESSORS, row.compressor.name, row)
    chosen = choice_model(row.compressor.name, row).model_validate({"name": "fixed16"})
    assert chosen.build() == added["Fixed16"]()
    text = page(row, facts(row))
    assert "**Wire format:**" in text
    assert "**Bias:**" in text


def test_it_has_the_bytes_that_are_said(added: dict[str, Any]) -> None:
    golden: dict[Any, str] = {}
    execute("GOLDEN[", dict(added) | {"GOLDEN": golden})
    ((codec, text),) = golden.items()
    assert bytes(encoded(codec, X).tolist()).hex() == text


def test_files_and_tables_that_it_names_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    for file in ("codecs/__init__.py", "compressors.py", "collectives/recursive_doubling.py"):
        assert file in PAGE.read_text(encoding="utf-8")
        assert (root / "compressa" / file).exists()
