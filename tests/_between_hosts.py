"""What tests between hosts need: marks, and a folder of testbeds that ends empty."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compressa.testbed._records import read_records

missing = [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]
MARKS = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    pytest.mark.skipif(bool(missing), reason=f"needs the programs {missing}"),
]


@pytest.fixture(autouse=True)
def own_testbeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPRESSA_TESTBED_DIR", str(tmp_path / "testbeds"))
    yield
    assert read_records() == []
