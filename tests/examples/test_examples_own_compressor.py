"""The example of a compressor of one's own: installed as any package, named, and conforming."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _run_example import EXAMPLES, run_example

from compressa.testing import check_allocations, check_codec_allocations, check_compressor
from compressa.wrappers import ErrorFeedback


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed it: no index is asked, and nothing is built in the source folder."""
    source = tmp_path_factory.mktemp("source") / "own_compressor"
    shutil.copytree(EXAMPLES / "own_compressor", source)
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.ranks
def test_two_ranks_train_with_it(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    said = run_example("own_compressor/train.py", tmp_path)
    found = re.fullmatch(r"(\d+)% right; highbyte: 4\.0 times fewer\n", said)
    assert found, said
    assert int(found[1]) >= 90


def test_it_keeps_what_a_codec_promises(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    codec = importlib.import_module("highbyte").HighByte()
    check_compressor(codec, most_ranks=2)
    check_codec_allocations(codec)
    check_allocations(ErrorFeedback(codec=codec))


def test_every_file_is_short() -> None:
    for file in filter(Path.is_file, (EXAMPLES / "own_compressor").iterdir()):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 80, file.name
