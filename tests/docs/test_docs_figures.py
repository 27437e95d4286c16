"""Figures on pages are those of committed measurements, and tables name all there is."""

from __future__ import annotations

import json
import re
from statistics import fmean, median
from typing import Any

import pytest
from _documents import DOCS, README, ROOT

from compressa import optim
from compressa.compressors import COMPRESSORS
from compressa.config.strategies import STRATEGIES as DESCRIBED
from compressa.transports.table import TRANSPORTS

RESULTS = ROOT / "experiments" / "results"
STRATEGIES = (DOCS / "guides" / "strategies.md").read_text(encoding="utf-8")
OPTIMIZERS = (DOCS / "guides" / "optimizers.md").read_text(encoding="utf-8")


def cells(plan: str) -> list[dict[str, Any]]:
    lines = (RESULTS / plan / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_figures_of_strategies_are_those_of_their_file() -> None:
    found = cells("strategies")
    digits = [cell for cell in found if cell["task"] == "digits"]
    near = {cell["compressor"]: cell for cell in digits if cell["link"] is None}
    losses = {c["compressor"]: c["metrics"]["loss"] for c in found if c["task"] == "gpt-demo"}
    assert len(losses) == 4
    assert all(f"{loss:.2f}" in STRATEGIES for loss in losses.values())
    far = {cell["compressor"]: cell for cell in found if cell["link"] == "10mbit"}
    assert len(near) == 10
    for name, cell in near.items():
        sent = cell["sent_bytes"] / 1e6
        share = cell["sent_bytes"] / near["ddp-float32"]["sent_bytes"]
        seconds = f"{far[name]['elapsed_s']:.1f}" if name in far else "-"
        row = f"| `{name}` | {100 * cell['metrics']['accuracy']:.2f} % | {sent:.1f} | {share:.4f} |"
        assert f"{row} {seconds} |" in STRATEGIES


@pytest.mark.parametrize("plan", ["slow_host", "near", "far"])
def test_the_times_to_quality_are_those_of_their_file(plan: str) -> None:
    for cell in (cell for cell in cells(plan) if cell["link"] is not None):
        right, sent = 100 * cell["metrics"]["accuracy"], cell["sent_bytes"] / 1e6
        reached = [p["elapsed_s"] for p in cell["curve"] if p["value"] >= 0.975]
        seconds = f"{reached[0]:.2f}" if reached else "-"
        row = f"| `{cell['compressor']}` | {right:.2f} % | {sent:.1f} | {seconds} |"
        assert row in STRATEGIES, row


def test_the_losses_of_digits_nearby_are_those_of_their_file() -> None:
    found = {c["compressor"]: c["metrics"]["loss"] for c in cells("near")}
    apart = found.pop("diloco-int4")
    said = f"the loss ends at {apart:.2f}, that of the others at {min(found.values()):.2f} to"
    assert f"{said} {max(found.values()):.2f}" in re.sub(r"\s+", " ", STRATEGIES)


@pytest.mark.parametrize("plan", ["near_gpt", "far_gpt"])
def test_the_times_of_a_gpt_are_those_of_their_file(plan: str) -> None:
    found = cells(plan)
    step_s = {cell["compressor"]: cell["step_s"] for cell in found if "step_s" in cell}
    trained = [cell for cell in found if "curve" in cell]
    (due,) = (c["metrics"]["loss"] for c in trained if c["compressor"] == "ddp-float32")
    assert len(trained) == 5
    for cell in trained:
        name, curve = cell["compressor"], cell["curve"]
        if cell["link"] is None:  # trained without the link, and its steps were timed on it
            times = [(point["value"], point["step"] * step_s[name]) for point in curve]
        else:
            times = [(point["value"], point["elapsed_s"]) for point in curve]
        reached = [f"{at:.0f}" for value, at in times if value <= 1.01 * due]
        loss, sent = cell["metrics"]["loss"], cell["sent_bytes"] / 1e6
        row = f"| `{name}` | {loss:.3f} | {sent:.1f} | {times[-1][1]:.0f} |"
        assert f"{row} {reached[0] if reached else '-'} |" in STRATEGIES, row


def test_the_figures_of_long_runs_are_those_of_their_file() -> None:
    found = {cell["compressor"]: cell for cell in cells("long") if cell["seed"] == 0}
    dense = [found[name] for name in ("adamw-1e-3", "adamw-14e-4", "ddp-float32")]
    base = min(cell["metrics"]["loss"] for cell in dense)
    for name in ("ddp-float32", "adamw-14e-4", *(each for each in found if "diloco" in each)):
        loss, sent = found[name]["metrics"]["loss"], found[name]["sent_bytes"] / 1e6
        share = found["ddp-float32"]["sent_bytes"] / found[name]["sent_bytes"]
        row = f"| `{name}` | {loss:.3f} | {loss / base - 1:+.1%} | {sent:,.0f} | 1 / {share:.0f} |"
        assert row in STRATEGIES, row
    text = re.sub(r"\s+", " ", OPTIMIZERS)
    for name in (each for each in found if each.startswith("demo-opt")):
        loss = found[name]["metrics"]["loss"]
        assert f"`{name}` {loss:.3f} ({loss / base - 1:+.1%})" in text, name


def test_the_seeds_of_long_runs_are_those_of_their_file() -> None:
    text = re.sub(r"\s+", " ", OPTIMIZERS)
    adamw = seeds_of("ddp-float32")
    assert f"AdamW ends at {listed(adamw)}, and DeMo at" in text
    for name in ("demo-opt-2e-3-w0", "demo-opt-2e-3", "adamw-2e-3-w0"):
        losses = seeds_of(name)
        assert len(losses) == len(adamw) == 3
        said = f"{listed(losses)}: {fmean(losses) / fmean(adamw) - 1:+.1%}"
        assert said in text, said
    assert fmean(seeds_of("demo-opt-2e-3-w0")) < 1.01 * fmean(adamw)


def listed(losses: list[float]) -> str:
    return ", ".join(f"{loss:.3f}" for loss in losses)


def test_the_seeds_of_diloco_are_those_of_their_file() -> None:
    by = {name: seeds_of(name) for name in ("diloco-int4-after-demo-16-bits", "ddp-float32")}
    diloco, adamw = by.values()
    assert len(adamw) == len(diloco) == 3
    change = fmean(diloco) / fmean(adamw) - 1
    said = f"ends at {listed(diloco)}, and AdamW at {listed(adamw)}: {change:+.1%}"
    assert said in re.sub(r"\s+", " ", STRATEGIES), said
    assert abs(change) < 0.01
    assert all(other / adamw[seed] < 1.01 for seed, other in enumerate(diloco))


def seeds_of(name: str) -> list[float]:
    """Losses of long runs, by seed."""
    found = {c["seed"]: c["metrics"]["loss"] for c in cells("long") if c["compressor"] == name}
    return [found[seed] for seed in sorted(found)]


def test_the_figures_of_fsdp_are_those_of_their_file() -> None:
    page = (DOCS / "guides" / "fsdp.md").read_text(encoding="utf-8")
    rows = json.loads((DOCS / "measurements" / "fsdp.json").read_text())["rows"]
    assert len(rows) == 3
    for row in rows:
        step_s, sent = median(row["step_s"]), row["counted_bytes"] / 1e6
        assert f"| {row['method']} | {step_s:.2f} | {sent:.1f} | {row['loss']:.4f} |" in page


def test_the_bytes_of_sparse_sums_are_those_of_their_file() -> None:
    page = (DOCS / "compressors" / "index.md").read_text(encoding="utf-8")
    file = json.loads((DOCS / "measurements" / "sparse_sums.json").read_text())
    assert len(file["counted"]) == 10
    for row in file["counted"]:
        names = ("oktopk", "estimating", "gtopk", "topk", "dense_ring")
        sizes = " | ".join(f"{row[name] / 1e3:,.0f}" for name in names)
        assert f"| {row['ranks']} | {row['gradients']} | {sizes} |" in page
    by, text = {row["method"]: row for row in file["sent"]}, re.sub(r"\s+", " ", page)
    step = {name: f"{row['step_bytes'] / 1e3:.0f} kB" for name, row in by.items()}
    first = f"{by['oktopk']['first_bytes'] / 1e3:.0f} kB in the first"
    assert f"{step['oktopk']} a step with `oktopk` ({first}), {step['gtopk']} with" in text
    assert f"{step['topk']} with `topk`" in text


def test_the_factor_of_hogwild_is_that_of_its_file() -> None:
    rows = json.loads((DOCS / "measurements" / "hogwild.json").read_text())["rows"]
    one, two = (median(row["steps_per_s"]) for row in rows)
    assert f"2 processes on 2 cores took {two / one:.1f} times the steps of one" in STRATEGIES


def test_the_losses_of_pipelines_are_those_of_their_file() -> None:
    page = (DOCS / "guides" / "pipeline.md").read_text(encoding="utf-8")
    rows = json.loads((DOCS / "measurements" / "pipeline.json").read_text())["rows"]
    dense = rows[0]["last_epoch_loss"]
    assert len(rows) == 7
    for row in rows:
        loss, more = row["last_epoch_loss"], 100 * (row["last_epoch_loss"] / dense - 1)
        sent = row["activation_bytes_per_step"] / 1e3, row["gradient_bytes_per_step"] / 1e3
        line = f"| {row['way']} | {loss:.3f} | {more:+.1f} % | {sent[0]:.1f} | {sent[1]:.1f} |"
        assert line in page, line


def test_the_losses_of_optimizers_are_those_of_their_file() -> None:
    found = cells("optim")
    losses: dict[str, list[float]] = {}
    for cell in found:
        losses.setdefault(cell["compressor"], []).append(cell["metrics"]["loss"])
    sent = {cell["compressor"]: cell["sent_bytes"] for cell in found}
    best = {name: seeds for name, seeds in losses.items() if len(seeds) == 3}
    base = fmean(best["adamw-1e-3"])
    for name, seeds in best.items():
        change, share = fmean(seeds) / base - 1, sent[name] / sent["adamw-1e-3"]
        row = f"| `{name}` | {fmean(seeds):.3f} | {change:+.1%} | 1 / {1 / share:.1f} |"
        assert row in OPTIMIZERS, row
    for name, seeds in losses.items():
        if len(seeds) == 1:
            assert f"`{name}` {seeds[0]:.3f}" in re.sub(r"\s+", " ", OPTIMIZERS), name


def test_the_page_of_strategies_names_all_of_them() -> None:
    table = STRATEGIES.split("## What there is")[1].split("## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.M) == [*DESCRIBED]


def test_the_page_of_optimizers_names_all_of_them() -> None:
    table = OPTIMIZERS.split("## What there is")[1].split("## ")[0]
    named = set(re.findall(r"^\| `(\w+)`", table, re.M))
    assert named == set(optim.__all__) - {"CompressedOptimizer"}


def test_the_readme_counts_what_there_is() -> None:
    words = {3: "three", 4: "four", 5: "five", 6: "six"}
    said = f"{len(COMPRESSORS) - 1} compressors, {words[len(TRANSPORTS)]} transports"
    assert said in README.read_text(encoding="utf-8")


def results() -> dict[str, list[str]]:
    """The README's table, by compressor."""
    table = README.read_text(encoding="utf-8").split("<!-- results:begin -->")[1]
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", table, re.M)
    return {name: cells.split(" | ") for name, cells in rows}


def test_what_the_readme_says_of_its_results_is_so() -> None:
    found = results()
    faster = {name: float(cells[4].split(" of ")[0]) for name, cells in found.items()}
    change = {name: float(cells[1].rstrip("%")) for name, cells in found.items()}
    assert 7.5 < faster["powersgd"] < 8.5
    assert 3.0 < faster["int8"] < 3.5
    assert abs(change["powersgd"]) < 0.5
    assert abs(change["int8"]) < 0.5
    assert {round(change[name]) for name in ("onebit", "topk")} == {16, 18}
    compressors = found.keys() - {"ddp-float32"}
    assert all(float(found[name][6]) < 1 for name in compressors)
    float32_ms = float(found["ddp-float32"][5])
    choosing = (DOCS / "choosing.md").read_text(encoding="utf-8")
    assert f"float32 takes {float32_ms:.0f} ms" in choosing
