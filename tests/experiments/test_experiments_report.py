from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

from lab import records
from lab.derive import Results, Row
from lab.records import CurvePoint, FailedRecord, Record, TimeRecord, TrainRecord
from lab.report import render
from lab.table import markdown_table, rich_table

COMMON: dict[str, Any] = {
    "machine": "a machine",
    "versions": {"torch": "2"},
    "date": "2025-01-01T00:00:00+00:00",
    "task": "gpt-demo",
    "seed": 0,
    "hosts": 4,
    "testbed_kind": "netns",
}
LINK = "100mbit"  # 12.5 MB take one second


def trained(compressor: str, values: list[float | None], **changes: Any) -> TrainRecord:
    points = [
        CurvePoint(step=100 * number, value=value, elapsed_s=0.5 * number)
        for number, value in enumerate(values, start=1)
    ]
    fields: dict[str, Any] = COMMON | {
        "compressor": compressor,
        "link": None,
        "steps": 100 * len(values),
        "dense_warmup_steps": 0,
        "parameters_elems": 1_000,
        "quality_name": "loss",
        "quality_unit": "nats per character",
        "larger_is_better": False,
        "tolerance": 0.01,
        "tolerance_relative": True,
        "metrics": {"loss": values[-1]},
        "units": {"loss": "nats per character"},
        "curve": points,
        "elapsed_s": 3.0,
        "replicas_identical": True,
        "parameters_sha256": "0",
    }
    return TrainRecord.model_validate(fields | changes)


def timed(compressor: str, step_s: float, sent_bytes: float, **changes: Any) -> TimeRecord:
    fields: dict[str, Any] = COMMON | {
        "compressor": compressor,
        "link": LINK,
        "timed_steps": 10,
        "step_s": step_s,
        "step_mean_s": step_s,
        "forward_s": 0.03,
        "backward_s": 0.06,
        "optimizer_s": 0.01,
        "codec_s": None,
        "bytes_dense": 16_666_667,
        "bytes_accounted": sent_bytes,
        "bytes_interface": sent_bytes,
        "link_bits_per_s": 1e8,
        "bucket_cap_mb": 25.0,
        "replicas_identical": True,
    }
    return TimeRecord.model_validate(fields | changes)


def whole() -> list[Record]:
    return [
        trained("ddp-float32", [3.0, 2.5, 2.0]),
        trained("torch-fp16", [3.0, 2.5, 2.01]),
        trained("onebit", [2.9, 2.01, 2.0], dense_warmup_steps=50),
        trained("lossy", [3.0, 3.0, 2.5]),
        timed("ddp-float32", 2.1, 25e6),
        timed("torch-fp16", 1.1, 12.5e6),
        timed("onebit", 0.2, 1.25e6, codec_s=0.04),
        timed("lossy", 1.5, 0.5e6, codec_s=2.0),
        trained("onebit", [2.9, 2.01, 2.0], link=LINK, dense_warmup_steps=50, elapsed_s=160.0),
    ]


def row(compressor: str, cells: list[Record]) -> Row:
    (found,) = [row for row in Results(cells).rows() if row.compressor == compressor]
    return found


def test_speedups_and_bounds_on_numbers_worked_out_by_hand() -> None:
    onebit = row("onebit", whole())
    assert onebit.compute_s == pytest.approx(0.1)
    assert onebit.exposed_comm_s == pytest.approx(0.2 - 0.1 - 0.04)
    assert onebit.ratio == pytest.approx(20.0)
    assert onebit.ratio_to_16_bit == pytest.approx(10.0)
    assert onebit.speedup_over_ddp_float32 == pytest.approx(10.5)
    assert onebit.speedup_over_torch_fp16 == pytest.approx(5.5)
    # F + B = 0.09; float32's bytes take 2.0 s, fp16's 1.0 s, onebit's 0.1 s.
    assert onebit.bound_over_ddp_float32 == pytest.approx((0.09 + 2.0) / 0.1)
    assert onebit.bound_over_torch_fp16 == pytest.approx((0.09 + 1.0) / 0.1)
    assert onebit.share_of_bound_over_ddp_float32 == pytest.approx(10.5 / 20.9)
    assert onebit.share_of_bound_over_torch_fp16 == pytest.approx(5.5 / 10.9)


def printed(width: int) -> str:
    file = StringIO()
    Console(file=file, width=width).print(rich_table(Results(whole()).rows(), width))
    return file.getvalue()


def test_the_share_of_the_bound_stands_beside_both_speedups() -> None:
    (line,) = [x for x in markdown_table(Results(whole()).rows()).splitlines() if "onebit" in x]
    assert "| 10.50 | 20.90 | 50% | 5.50 | 10.90 | 50% |" in line
    assert printed(width=220).count("of bound") == 2


def test_a_narrow_terminal_gives_up_a_bound_before_the_share_of_it() -> None:
    headings = [printed(width).splitlines()[2] for width in range(80, 200)]
    assert any("of bound" in text and "  bound" not in text for text in headings)
    assert not any("  bound" in text and "of bound" not in text for text in headings)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_columns_that_do_not_fit_are_left_out_whole(width: int) -> None:
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed(width)


def test_a_bound_by_computing_ignores_a_faster_wire() -> None:
    lossy = row("lossy", whole())  # its bytes take 0.04 s, less than F + B
    assert lossy.bound_over_ddp_float32 == pytest.approx((0.09 + 2.0) / 0.09)


def test_no_speedup_can_exceed_its_bound_when_the_baseline_is_slow() -> None:
    cells: list[Record] = [
        timed("ddp-float32", 5.0, 25e6, optimizer_s=0.0),
        timed("fast", 0.1, 1.25e6, optimizer_s=0.0),
    ]
    fast = row("fast", cells)
    assert fast.speedup_over_ddp_float32 is not None
    assert fast.bound_over_ddp_float32 is not None
    assert fast.speedup_over_ddp_float32 <= fast.bound_over_ddp_float32


def test_time_to_target_is_steps_times_step_time_with_a_dense_warmup() -> None:
    assert row("ddp-float32", whole()).steps_to_target == 300
    assert row("ddp-float32", whole()).time_to_target_s == pytest.approx(300 * 2.1)
    onebit = row("onebit", whole())  # 2.01 after 200 steps is within 1 % of 2.0
    assert onebit.steps_to_target == 200
    assert onebit.time_to_target_s == pytest.approx(50 * 2.1 + 150 * 0.2)
    assert row("lossy", whole()).time_to_target_s is None


def test_quality_is_compared_with_float32_of_the_same_seed() -> None:
    cells = [*whole(), trained("onebit", [9.0], seed=7), trained("ddp-float32", [8.0], seed=7)]
    rows = [r for r in Results(cells).rows() if r.compressor == "onebit"]
    assert {r.seed: r.difference_from_float32 for r in rows} == {0: 0.0, 7: 1.0}


def test_a_cell_slower_than_a_dense_baseline_is_shown_and_marked() -> None:
    assert row("lossy", whole()).loses
    assert not row("onebit", whole()).loses
    (line,) = [x for x in markdown_table(Results(whole()).rows()).splitlines() if "lossy" in x]
    assert line.endswith("| loses |")


def test_a_diverged_run_is_a_result() -> None:
    cells = [*whole(), trained("broken", [3.0, None]), timed("broken", 0.2, 1e6)]
    broken = row("broken", cells)
    assert broken.diverged
    assert broken.final_loss is None
    assert broken.time_to_target_s is None
    assert "diverged" in markdown_table([broken])


def test_loopback_baselines_are_not_compared_on_a_shaped_link() -> None:
    cells: list[Record] = [
        timed("ddp-float32", 0.1, 25e6, testbed_kind="loopback"),
        timed("int8", 0.5, 6e6, testbed_kind="loopback", bytes_interface=None),
    ]
    assert row("int8", cells).speedup_over_ddp_float32 is None
    assert row("int8", cells).share_of_bound_over_ddp_float32 is None


def test_an_end_to_end_run_is_set_beside_its_prediction() -> None:
    (confirmation,) = Results(whole()).confirmations()
    assert confirmation.predicted_training_time_s == pytest.approx(50 * 2.1 + 250 * 0.2)
    assert confirmation.measured_training_time_s == 160.0
    assert confirmation.measured_time_to_target_s == pytest.approx(1.0)
    assert confirmation.same_bits_as_unshaped


@pytest.mark.parametrize("cells", [9, 6, 2, 1], ids="{} cells".format)
def test_whole_and_partial_results_render(tmp_path: Path, cells: int) -> None:
    for record in whole()[:cells]:
        records.append(tmp_path, record)
    failure: dict[str, Any] = COMMON | {"compressor": "int8", "link": LINK, "cell_kind": "time"}
    records.append(tmp_path, FailedRecord(**failure, error="rank 1 died <&>\nmore"))
    console = Console(record=True, width=100, quiet=True)
    render(tmp_path, console)
    written = [
        Row.model_validate_json(x) for x in (tmp_path / "results.jsonl").read_text().splitlines()
    ]
    assert written == Results(whole()[:cells]).rows()
    assert (tmp_path / "table.md").read_text().count("\n") == 2 + len(written)
    html = (tmp_path / "report.html").read_text()
    assert "rank 1 died &lt;&amp;&gt;" in html
    assert not re.findall(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)\s*=""", html)
    assert not re.findall(r"""@import|url\(\s*["']?https?:""", html.split("</style>")[0])


def test_plots_are_drawn_for_bytes_time_and_steps(tmp_path: Path) -> None:
    for record in whole():
        records.append(tmp_path, record)
    render(tmp_path, Console(quiet=True))
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "quality_against_bytes_gpt-demo.png",
        "quality_against_time_gpt-demo_100mbit.png",
        "step_time_gpt-demo_100mbit.png",
    ]


def test_a_line_cut_off_by_a_kill_is_left_out_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    for record in whole()[:2]:
        records.append(tmp_path, record)
    path = tmp_path / records.CELLS_FILE
    text = path.read_text()
    path.write_text(text[:-40])
    assert len(records.read(tmp_path)) == 1
    path.write_text('{"kind": "train"}\n' + text)
    with pytest.raises(ValueError, match="line 1 is no record"):
        records.read(tmp_path)


def test_cells_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    assert records.set_aside(tmp_path) is None
    cells = tmp_path / records.CELLS_FILE
    for text in ("first", "second"):
        cells.write_text(text)
        kept = records.set_aside(tmp_path)
        assert kept is not None
        assert kept.read_text() == text
        assert not cells.exists()
    assert len(list(tmp_path.iterdir())) == 2
