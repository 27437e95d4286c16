"""extending.md: its codec conforms, and would not with a fault; in the tree it lacks nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from _documents import DOCS, ROOT, block_with, blocks

from compressa.codecs import Contraction
from compressa.testing import check_codec

PAGE = DOCS / "extending.md"
CODEC = "compressa/codecs/fixed16.py"

# What a new codec meets, of the files that go over all of them; the others need ranks or a minute.
MET = "fixed16 or golden_bytes or wire_ids or every_compressor_is_in or readme_counts"
FILES = (
    "tests/aggregators/test_aggregators_conformance.py",
    "tests/cli/test_cli_compressors.py",
    "tests/codecs/test_codecs_conformance.py",
    "tests/codecs/test_codecs_golden.py",
    "tests/config/test_config_load.py",
    "tests/config/test_config_ranges.py",
    "tests/config/test_config_schema.py",
    "tests/docs/test_docs_figures.py",
    "tests/simulation/test_simulation.py",
    "tests/site/test_site_compressors.py",
    "tests/test_compressors_facts.py",
    "tests/testing/test_conformance_adversarial.py",
    "tests/testing/test_conformance_allocations.py",
    "tests/testing/test_conformance_registration.py",
    "tests/testing/test_conformance_toml.py",
)


@pytest.fixture(scope="module")
def added() -> dict[str, Any]:
    """The names of the module with the compressor."""
    names: dict[str, Any] = {"__name__": "fixed16"}
    code = block_with(PAGE, "python", "class Fixed16").code
    exec(compile(code, PAGE.name, "exec", dont_inherit=True), names)
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


def patched(text: str, diff: str) -> str:
    """Return a text after a diff: each new line comes behind the line that it is shown behind.

    Raises:
        ValueError: A line that is shown as there is not.
    """
    lines, at = text.splitlines(), 0
    for line in diff.splitlines():
        sign, shown = line[0], line[1:]
        if sign == "@":
            continue
        if sign != "+":
            at = lines.index(shown, at)
        lines[at : at + (sign != "+")] = [] if sign == "-" else [shown]
        at += sign != "-"
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files as they are after the page, with what is compiled."""
    root = tmp_path_factory.mktemp("added") / "compressa"
    linked = shutil.ignore_patterns("kernels", "schedulers")
    shutil.copytree(ROOT / "compressa", root / "compressa", ignore=linked)
    for folder in ("tests", "experiments/configs"):
        shutil.copytree(ROOT / folder, root / folder)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, root / file)
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    more = re.sub(r"(\d+)(?= compressors,)", lambda found: str(int(found[1]) + 1), text)
    readme.write_text(more, encoding="utf-8")
    (root / CODEC).write_text(block_with(PAGE, "python", "class Fixed16").code, encoding="utf-8")
    for block in blocks(PAGE):
        file = root / block.title
        if block.language == "diff":
            file.write_text(patched(file.read_text(encoding="utf-8"), block.code), encoding="utf-8")
        elif block.title.startswith("experiments/"):
            file.write_text(block.code, encoding="utf-8")
    return root


def run(tree: Path, *words: str) -> str:
    """Run a module of Python there; return what it prints, if it succeeds."""
    paths = os.pathsep.join([str(tree), str(tree / "tests")])
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def changed(tree: Path) -> Sequence[str]:
    """Return the files of Python that the page's blocks are of."""
    return sorted({block.title for block in blocks(PAGE) if block.language == "diff"})


def test_its_files_are_as_ruff_wants_them(tree: Path) -> None:
    assert CODEC in changed(tree)
    run(tree, "ruff", "check", "--no-cache", *changed(tree))
    run(tree, "ruff", "format", "--no-cache", "--check", *changed(tree))


@pytest.mark.timeout(600)
def test_a_codec_in_the_tree_passes_what_every_codec_meets(tree: Path) -> None:
    (tree / "compressa" / "kernels").symlink_to(ROOT / "kernels")
    (tree / "compressa" / "schedulers").symlink_to(ROOT / "schedulers")
    for folder in ("benchmarks", "docs", "experiments/results", "harness", "website"):
        (tree / folder).symlink_to(ROOT / folder)
    run(tree, "doctest", CODEC)
    options = ["-q", "-rA", "-p", "no:cacheprovider", "--timeout", "500"]
    said = run(tree, "pytest", *options, "-m", "not ranks", "-k", MET, *FILES)
    for file in FILES:
        assert f"PASSED {file}" in said, said


def test_a_diff_of_a_line_that_is_not_there_is_refused() -> None:
    assert patched("a\nb\nc\n", " a\n+x\n@@\n-c\n+d\n") == "a\nx\nb\nd\n"
    with pytest.raises(ValueError, match="not in list"):
        patched("a\n", " b\n+c\n")


def test_files_and_tables_that_it_names_exist() -> None:
    for file in ("codecs/__init__.py", "compressors.py", "collectives/recursive_doubling.py"):
        assert file in PAGE.read_text(encoding="utf-8")
        assert (ROOT / "compressa" / file).exists()
