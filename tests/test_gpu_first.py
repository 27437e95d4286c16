"""What a GPU is tried with first finds what is wrong; on a CPU, the same on small arrays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu
import gpu_commands
import gpu_first
import pytest
import torch
from compressa.kernels.topk import select_top_k
from emulated_torch import StreamedEmulated, emulated_torch
from gpu_first import busy_selection, check_selection

from benchmarks.kernels import table

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "gpu.md"


def test_a_selection_is_compared_with_that_of_torch() -> None:
    busy_selection(torch.device("cpu"))(20_000, 3)


@pytest.mark.parametrize(("broken", "why"), [(0, "other"), (1, "values of|values are")])
def test_a_selection_that_is_wrong_is_noticed(
    broken: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(x: Any, k: int, indices: Any, values: Any) -> None:
        select_top_k(x, k, indices, values)
        if broken:
            indices[:] = indices[::-1].copy()
        else:
            values[k // 2] *= 0.5

    monkeypatch.setattr(gpu_first, "select_top_k", wrong)
    with pytest.raises(AssertionError, match=why):
        check_selection(torch.randn(1000), 10)


def test_units_by_graphs_are_compared_with_units_by_launches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_first, "TIMES", 2)
    with emulated_torch():
        gpu_first.graphs()
    assert "us by graphs" in capsys.readouterr().out
    replay = StreamedEmulated.graph
    monkeypatch.setattr(
        StreamedEmulated, "graph", lambda self, launches: replay(self, launches[:-1])
    )
    with emulated_torch(), pytest.raises(AssertionError, match="by CUDA graphs has other bits"):
        gpu_first.graphs()


def test_a_sanitizer_runs_each_tool_without_pools_of_memory_and_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[Sequence[str], dict[str, str]]] = []

    def said(
        command: list[str], limit_s: float, folder: Path, *, environment: dict[str, str]
    ) -> gpu.State:
        ran.append((command, environment))
        return {"code": 9 * ("racecheck" in command), "output": "as it was"}

    monkeypatch.setattr(gpu_commands, "said", said)
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
    assert list(gpu.sanitizer(tmp_path, 60)) == [
        {"code": 0, "left_out": "compute-sanitizer is not on the PATH"}
    ]
    monkeypatch.setattr(gpu.shutil, "which", lambda name: f"/bin/{name}")
    *_, state = gpu.sanitizer(tmp_path, 60)
    assert state == {"code": 9, "said": ["as it was"] * 2, "not_reached": []}
    assert [command[:3] for command, _ in ran] == [
        ["/bin/compute-sanitizer", "--tool", tool] for tool in ("memcheck", "racecheck")
    ]
    assert all(there == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} for _, there in ran)
    assert all(Path(file).exists() for file in ran[0][0] if file.endswith(".py"))


def test_the_guide_tells_what_the_last_gpu_reached() -> None:
    last = max(gpu.RESULTS.glob("gpu-*.json"), key=lambda file: file.stem[-len("2026-01-31") :])
    found = json.loads(last.read_text(encoding="utf-8"))
    reached: dict[str, dict[str, float]] = {}
    for row in found["measurement"]["rows"]:
        if row["benchmark"] == "kernels" and row["limit_ratio"] is not None:
            known = reached.setdefault(row["case"].split(" @ ")[0], {})
            known |= {"ms": row["median"], "share": row["limit_ratio"]}
            if row["peer"] == "torch.compile":
                known["compiled"] = row["peer_median"]
    asked = {case.name: case.least_share.gpu for case in (*table.CASES, *table.GPU_CASES)}
    section = GUIDE.read_text(encoding="utf-8").split("## What was measured")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.count("|") == 6]
    assert len(lines) > 12
    for line in lines[2:]:
        name, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        ms, share, compiled = (reached[name][what] for what in ("ms", "share", "compiled"))
        assert cells == [f"{ms:.3f}", f"{share:.2f}", f"{asked[name]:.2f}", f"{compiled:.3f}"], name
