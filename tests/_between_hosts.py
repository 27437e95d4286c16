"""What tests between hosts need: marks, a folder of testbeds that ends empty, warm ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _ranks import Pools

from compressa.testbed import Testbed
from compressa.testbed._records import read_records
from harness import start

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


@pytest.fixture
def warm_ranks(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks that `harness` starts import torch and all before they start."""
    spawn = start.spawn

    def warm(bed: Testbed, host: int, words: Sequence[str], *rest: Any, **named: Any) -> Any:
        return spawn(bed, host, [pools.zygote.python, *words[1:]], *rest, **named)

    monkeypatch.setattr(start, "spawn", warm)
