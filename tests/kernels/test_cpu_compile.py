"""Who has compiled once need not wait again: a second run's first step compiles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _trees import uncompiled_tree

SCRIPT = Path(__file__).with_name("_first_steps.py")
FIRST_TIER = (
    "fp16",
    "bf16",
    "fp8",
    "int8",
    "int4",
    "int2",
    "qsgd",
    "terngrad",
    "natural",
    "onebit",
    "topk",
    "randomk",
    "chunked_topk",
    "dgc",
    "powersgd",
    "thc",
)


def trained(*arguments: str, tree: Path | None = None) -> Any:
    """Train first steps in a process of their own; return what it had to compile."""
    environment = dict(os.environ)
    if tree is not None:
        environment |= {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(tree / "cache")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def prepared() -> Any:
    """A run after `python -m compressa.kernels.compile`, in the same process."""
    return trained("--compile", *FIRST_TIER)


@pytest.mark.parametrize("name", FIRST_TIER)
def test_all_that_training_needs_is_compiled_beforehand(name: str, prepared: Any) -> None:
    assert prepared["missing"][name] == []


@pytest.fixture(scope="module")
def registered(prepared: Any) -> Any:
    """A second run, after what a registration with each compressor does."""
    return trained("--register", *FIRST_TIER)


@pytest.mark.parametrize("name", FIRST_TIER)
def test_a_registration_leaves_no_step_anything_to_compile(name: str, registered: Any) -> None:
    assert registered["missing"][name] == []


def test_a_second_run_compiles_nothing(registered: Any) -> None:
    assert registered["compiled"] == []
    assert registered["registered"]["int8"], "kernels were loaded, and were there to be seen"


def test_a_first_run_compiles_and_leaves_it_to_the_second(tmp_path: Path) -> None:
    tree = uncompiled_tree(tmp_path)
    assert trained("--half", "onebit", tree=tree)["compiled"]  # for gradients of all kinds
    assert trained("--half", "onebit", tree=tree)["compiled"] == []
