"""`make gpu` without a GPU says so; with one, it names its file by GPU and day."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import gpu
import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    assert gpu.main() == 1
    assert "There is no GPU here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_result_is_named_by_gpu_and_day() -> None:
    when = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    assert gpu.file_name("NVIDIA H200 (SXM)", when) == "gpu-nvidia-h200-sxm-2026-01-31.json"


def test_commands_are_ended_at_their_limit_and_heard_until_then() -> None:
    done = gpu.said([sys.executable, "-c", "print('here', flush=True)"], 60)
    assert (done["code"], done["output"]) == (0, "here\n")
    code = "import time; print('begun', flush=True); time.sleep(60)"
    done = gpu.said([sys.executable, "-c", code], 3)
    assert done["code"] == 124
    assert "begun" in done["output"]
    assert "ended after 3 s" in done["output"]
