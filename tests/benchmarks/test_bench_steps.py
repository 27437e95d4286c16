"""`python -m benchmarks steps`: its arithmetic, what is judged, and each method on two ranks."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _ranks import Group

from benchmarks.steps import training
from benchmarks.steps.memory import kernel_bytes
from benchmarks.steps.messages import ANSWER, CALL
from benchmarks.steps.models import GPT, LARGE_MODELS, MODELS
from benchmarks.steps.plan import (
    ALONE,
    DDP,
    EPFML_POWERSGD,
    FAST,
    NONE,
    SLOW,
    TORCH_POWERSGD,
    UNSHAPED,
    Method,
    Network,
    Settings,
)
from benchmarks.steps.ratios import Ratios, ratio
from benchmarks.steps.records import Case, Cpu, Header, Message, Step, StepsMeasurement
from benchmarks.steps.tables import shown
from benchmarks.steps.targets import is_near, verdicts
from compressa.codecs import Int8, NoCompression, OneBit, TopK
from compressa.compressors import COMPRESSORS
from compressa.errors import ConfigError
from harness.runner import as_page

NOW = datetime(2026, 5, 1, tzinfo=UTC)
PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks" / "steps.md").read_text(encoding="utf-8")


def case(network: Network = FAST, model: str = "mlp", **given: Any) -> Case:
    fields = {
        "parameters": 1000,
        "samples": 32,
        "rounds": 3,
        "line_bytes_per_s": 1e8,
        "bus_bytes_per_s": 1e10,
        **given,
    }
    return Case(hosts=network.hosts, link=network.link, model=model, timestamp=NOW, **fields)


def step(
    method: Method, *rounds_ms: float, of: Case | None = None, beside_ms: float = 0.0, **given: Any
) -> Step:
    at = of or case()
    rounds_s = tuple(ms / 1e3 for ms in rounds_ms * (3 if len(rounds_ms) == 1 else 1))
    fields = {
        "sent_bytes": None,
        "counted_bytes": 0.0,
        "messages": None,
        "kernel_bytes": None,
        **given,
    }
    return Step(
        hosts=at.hosts,
        link=at.link,
        model=at.model,
        method=method.name,
        client=method.client,
        compressor=method.compressor,
        median_s=sorted(rounds_s)[1],
        p20_s=min(rounds_s),
        p80_s=max(rounds_s),
        rounds_s=rounds_s,
        cpu=Cpu(
            main_s=0.01,
            communication_s=0.25e-3 * beside_ms,
            workers_s=0.5e-3 * beside_ms,
            other_s=0.25e-3 * beside_ms,
        ),
        load=0.5,
        timestamp=NOW,
        **fields,
    )


def hook(compressor: str) -> Method:
    return Method.ours(compressor, "hook")


def overlapped(compressor: str) -> Method:
    return Method.ours(compressor, "overlapped")


def measurement(at: Case, *steps: Step, **rows: Any) -> StepsMeasurement:
    header = Header.here({"torch": "2"}, rank_cores=2, budget_s=0.4)
    return StepsMeasurement(header=header, cases=[at], steps=list(steps), **rows)


def judged(at: Case, *steps: Step) -> dict[str, tuple[str, bool | None]]:
    """By target and row, what was reached and whether that is enough."""
    found = verdicts(measurement(at, *steps))
    assert len({(v.target, v.at) for v in found}) == len(found)
    return {f"{v.target}: {v.at}": (v.reached, v.met) for v in found}


def test_a_ratio_is_the_median_of_those_side_by_side() -> None:
    assert ratio([1.0, 40.0, 6.0], [1.0, 10.0, 2.0]) == 3.0, "and not of the medians, 3 over 2"
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_f_k_and_w_make_what_a_step_is_compared_with() -> None:
    at = case(line_bytes_per_s=1e8, bus_bytes_per_s=1e10)
    ours = step(hook("int8"), 60.0, 30.0, 90.0, sent_bytes=4e6, kernel_bytes=1e8, counted_bytes=9e9)
    ratios = Ratios(at, [step(ALONE, 20.0, 10.0, 50.0), ours])
    assert ratios.wire_s(ours) == pytest.approx(0.04), "of our statistics, where there are some"
    assert ratios.kernels_s(ours) == pytest.approx(0.01)
    assert ratios.of_work(ours) == pytest.approx(1.5), "60 / 30, 30 / 20 and 90 / 60"
    assert ratios.of_bound(ours) == pytest.approx(1.5), "60 / 40, 30 / 40 and 90 / 60"
    assert ratios.of(ours, ALONE.name) == pytest.approx(3.0)
    assert ratios.of(ours, DDP.name) is None
    others = step(DDP, 60.0, counted_bytes=5e6)
    assert ratios.wire_s(others) == pytest.approx(0.05)
    assert ratios.kernels_s(others) is ratios.of_work(others) is ratios.of_bound(others) is None


def test_on_fast_links_steps_are_judged_by_computing_and_int8_by_the_wire_too() -> None:
    at = case(FAST, "mlp")
    found = judged(
        at,
        step(ALONE, 20.0),
        step(hook("onebit"), 30.0, kernel_bytes=5e7, sent_bytes=5e5),
        step(hook("int8"), 50.0, kernel_bytes=5e7, sent_bytes=5e6),
        step(hook("topk"), 35.0, kernel_bytes=5e7, sent_bytes=2e5),
    )
    assert found == {
        "step over F + K: onebit, hook": ("1.20", True),
        "step over F + K: topk, hook": ("1.40", False),
        "step over max(F + K, W): int8, hook": ("1.00", True),
        "CPU beside the training thread, hook: int8, hook": ("0.00 ms", True),
        "CPU beside the training thread, hook: onebit, hook": ("0.00 ms", True),
    }


def test_of_hook_and_overlap_the_faster_is_judged_and_one_beside_the_other() -> None:
    at = case(SLOW, "gpt")
    figures = {"kernel_bytes": 1e9, "sent_bytes": 3e7}  # K 100 ms, W 300 ms, F 300 ms
    found = judged(
        at,
        step(ALONE, 300.0, of=at),
        step(hook("int8"), 500.0, of=at, **figures),
        step(overlapped("int8"), 440.0, of=at, **figures),
    )
    assert found == {
        "share of the bound: int8, overlapped": ("0.91", True),
        "overlapped over hook, W near F: int8, overlapped": ("0.88", False),
    }


@pytest.mark.parametrize(
    ("sent_bytes", "took_ms", "target", "met"),
    [
        (1e6, 102.0, "overlapped over hook", True),
        (1e6, 103.0, "overlapped over hook", False),
        (1e7, 85.0, "overlapped over hook, W near F", True),
        (1e7, 86.0, "overlapped over hook, W near F", False),
        (2e7, 102.0, "overlapped over hook", True),
    ],
)
def test_overlap_must_gain_only_where_the_wire_takes_about_as_long_as_computing(
    sent_bytes: float, took_ms: float, target: str, met: bool
) -> None:
    at = case(UNSHAPED, "gpt")
    found = judged(
        at,
        step(ALONE, 100.0, of=at),
        step(hook("natural"), 100.0, of=at, sent_bytes=sent_bytes),
        step(overlapped("natural"), took_ms, of=at, sent_bytes=sent_bytes),
    )
    assert [what.partition(":")[0] for what in found] == [target]
    assert next(iter(found.values()))[1] is met


def test_near_is_where_neither_the_wire_nor_computing_is_much_longer() -> None:
    assert is_near(1.0)
    assert is_near(0.75)
    assert is_near(1.33)
    assert not is_near(0.74)
    assert not is_near(1.34)


def test_powersgd_is_judged_by_that_of_others_where_both_were_measured() -> None:
    at = case(SLOW, "mlp")
    ours, alone = step(hook("powersgd"), 100.0, of=at), step(ALONE, 50.0, of=at)
    assert judged(at, alone, ours) == {}
    others = [step(TORCH_POWERSGD, 200.0, of=at), step(EPFML_POWERSGD, 160.0, of=at)]
    assert judged(at, alone, ours, *others) == {
        "PowerSGD, of PyTorch's: powersgd, hook": ("0.50", False),
        "PowerSGD, of epfml/powersgd: powersgd, hook": ("0.62", True),
    }


def test_none_is_judged_by_ddp_everywhere_and_others_where_links_are_unshaped() -> None:
    for network, others in ((SLOW, []), (UNSHAPED, [("1.10", False)])):
        at = case(network, "gpt")
        found = judged(
            at,
            step(ALONE, 50.0, of=at),
            step(DDP, 100.0, of=at),
            step(NONE, 103.0, of=at),
            step(hook("natural"), 110.0, of=at),
        )
        assert list(found.values()) == [("1.03", True), *others]


def test_of_processor_time_what_idle_engines_take_does_not_count() -> None:
    at = case()
    found = judged(
        at, step(ALONE, 20.0, beside_ms=1.0), step(hook("powersgd"), 40.0, beside_ms=9.0)
    )
    assert found == {"CPU beside the training thread, hook: powersgd, hook": ("7.00 ms", False)}


def test_an_answer_is_judged_and_a_call_is_not() -> None:
    rows = [
        Message(
            hosts=2,
            link="unshaped",
            what=what,
            size_bytes=64,
            idle_s=(1e-4, 1e-4, 2e-4),
            beside_s=(9e-4, 9e-4, 1e-2),
            timestamp=NOW,
        )
        for what in (CALL, ANSWER)
    ]
    (verdict,) = verdicts(measurement(case(), step(ALONE, 1.0), messages=rows))
    assert (verdict.reached, verdict.at, verdict.met) == ("9.0", ANSWER, True)


def test_a_file_is_refused_whose_steps_have_no_case_or_cases_no_computing() -> None:
    whole = measurement(case(), step(ALONE, 20.0))
    for change in (
        {"cases": []},
        {"steps": []},
        {"cases": [case(rounds=2)]},
        {"steps": [step(DDP, 20.0)]},
    ):
        with pytest.raises(ValueError, match=r"no case|not measured"):
            StepsMeasurement.model_validate({**dict(whole), **change})


def test_what_is_shown_has_a_column_for_each_ratio_and_a_line_for_each_method() -> None:
    ours = step(overlapped("int8"), 60.0, sent_bytes=4e6, kernel_bytes=1e8, messages=35.0)
    steps = [step(ALONE, 20.0), step(DDP, 120.0), step(hook("int8"), 50.0), ours]
    page = "".join(as_page(shown(measurement(case(), *steps))))
    figures = "60.0 | 60.0 to 60.0 | 40.0 | 10.0 | 2.00 | 1.50 | 0.50 | - | 1.20 | 4,000.0 | 35.0"
    assert f"| int8, overlapped | {figures} | 10.0 |" in page
    assert "| overlapped over hook | 2 | 1gbit | mlp | 1.20 | <= 1.02 |" in page


RANDOM_K = COMPRESSORS["randomk"].compressor(density=0.01)


@pytest.mark.parametrize(
    ("compressor", "ranks", "expected"),
    [
        (NoCompression(), 4, 12 * 1024 * 3 / 4),
        # Encoding, the payloads of all ranks, the mean.
        (OneBit(), 2, 12 * 1024 + 2 * 132 + 2 * 132 + 8 * 1024),
        (TopK(density=0.01), 4, 16 * 1024 + 6 * TopK(density=0.01).wire_bytes(1024) + 8 * 1024),
        # Encoding, payloads of the own shard, that of its mean, those of all means, the mean.
        (OneBit(), 4, 12 * 1024 + 2 * 132 + 132 * 3 / 4 + 2 * 132 / 4 + 132 + 8 * 1024),
        (Int8(), 4, 20 * 1024 + Int8().wire_bytes(1024) * (2 + 3 / 4 + 2 / 4 + 1)),
        (RANDOM_K, 4, 20 * 1024 + RANDOM_K.payload_bytes((1024,)) * (2 + 3 * 3 / 4)),
    ],
)
def test_kernels_must_move_gradient_residual_payloads_and_mean(
    compressor: Any, ranks: int, expected: float
) -> None:
    assert kernel_bytes(compressor, [(1024,)], ranks) == pytest.approx(expected)
    assert kernel_bytes(compressor, [(1024,)] * 3, ranks) == pytest.approx(3 * expected)


def test_a_matrix_of_low_rank_takes_four_passes_and_a_vector_is_summed() -> None:
    compressor = COMPRESSORS["powersgd"].compressor(approx_rank=2)
    summed = 12 * 10 * 3 / 4
    assert kernel_bytes(compressor, [(64, 128), (10,)], 4) == 32 * 64 * 128 + summed
    assert kernel_bytes(compressor, [(2, 5)], 4) == summed, "which is too small to gain anything"


def test_what_nobody_has_stated_is_unknown_and_without_residual_less_is_moved() -> None:
    assert kernel_bytes(COMPRESSORS["thc"].compressor(), [(64,)], 4) is None
    assert not COMPRESSORS["qsgd"].compressor().error_feedback
    qsgd = COMPRESSORS["qsgd"].compressor()
    payload = qsgd.payload_bytes((1024,))
    assert kernel_bytes(qsgd, [(1024,)], 2) == (4 + 8) * 1024 + 4 * payload


def test_computing_alone_always_takes_its_turn_and_nobody_takes_two() -> None:
    names = [method.name for method in Settings(compressors=["none", "int8"]).methods]
    assert names[0] == ALONE.name
    assert len(set(names)) == len(names)
    assert {DDP.name, NONE.name, "none, overlapped", "int8, hook", "int8, overlapped"} < set(names)
    assert [m.name for m in Settings(pattern="nobody").methods] == [ALONE.name]


def test_networks_are_read_and_what_is_none_is_refused() -> None:
    assert Network.parse("4x100mbit") == SLOW
    assert Network.parse("2x250Mbit of 1gbit") == Network(2, "250mbit of 1gbit")
    for text in ("1xunshaped", "4", "x100mbit", "4x", "fourx1gbit"):
        with pytest.raises(ConfigError):
            Network.parse(text)
    for given in ({"parts": ["dance"]}, {"compressors": ["zip"]}, {"models": ["vgg"]}):
        with pytest.raises(ConfigError):
            Settings(**given)


@pytest.mark.parametrize(("model", "parameters"), [("mlp", 4_275_210), ("gpt", 4_031_232)])
def test_models_are_as_large_as_is_said_and_can_be_trained(model: str, parameters: int) -> None:
    trained = MODELS[model]
    module = trained.make()
    assert sum(p.numel() for p in module.parameters()) == parameters
    assert f"{parameters:,} parameters" in PAGE
    assert not list(module.buffers()), "DDP would broadcast them before each forward pass"
    (inputs, classes), *_ = trained.batches(seed=3)
    assert len(inputs) == trained.samples
    torch.nn.functional.cross_entropy(module(inputs), classes).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("model", LARGE_MODELS)
def test_models_for_a_gpu_are_made_there_and_are_as_large_as_is_said(model: str) -> None:
    trained = LARGE_MODELS[model]
    with torch.device("meta"):  # a tensor that is not made there can not be mixed with the others
        module = trained.make()
    inputs, classes = (x.to("meta") for x in trained.batch(torch.Generator()))
    assert 65e6 < sum(p.numel() for p in module.parameters()) < 75e6
    assert len(inputs) == trained.samples
    torch.nn.functional.cross_entropy(module(inputs), classes).backward()
    assert all(p.grad is not None for p in module.parameters())


def test_gpt_sees_no_later_tokens() -> None:
    torch.manual_seed(0)
    model = GPT()
    tokens = torch.randint(128, (1, 64))
    changed = tokens.clone()
    changed[0, 40] = (tokens[0, 40] + 1) % 128
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:40], after[:40])
    assert not torch.equal(before[40], after[40])


METHODS = [ALONE, DDP, NONE, TORCH_POWERSGD, hook("int8"), overlapped("onebit")]


def train_with_each(steps: int) -> dict[str, dict[str, float]]:
    served = training.Training()
    served.begin("mlp")
    told = {}
    for method in METHODS:
        served.open(method)
        told[method.name] = served.train(method, steps)
        served.check(method)
    served.close()
    return told


def test_each_method_trains_and_tells_what_a_step_takes(two: Group) -> None:
    for told in two.run(train_with_each, steps=2):
        for method in METHODS:
            figures = told[method.name]
            assert figures["step_s"] > 0
            assert figures["main_s"] > 0
            assert ("sent_bytes" in figures) == bool(method.compressor)
        ours = told["int8, hook"]
        assert ours["communication_s"] > 0
        assert ours["workers_s"] > 0
        assert ours["messages"] > 0
        assert 4_275_210 < ours["sent_bytes"] < 1.1 * 4_275_210, "a byte for each, to one peer"
        for other in (ALONE, DDP, TORCH_POWERSGD):
            assert told[other.name]["communication_s"] == 0 == told[other.name]["workers_s"]


def train_apart() -> list[str]:
    served = training.Training()
    served.begin("mlp")
    served.open(DDP)
    said = []
    trainer = served._trainers[DDP.name]
    with torch.no_grad():
        next(trainer.module.parameters())[0, 0] += float(dist.get_rank())
    for loss in (1.0, math.inf):
        trainer.last_loss = loss
        try:
            served.check(DDP)
        except ArithmeticError as error:
            said.append(str(error))
    return said


def test_replicas_that_differ_and_losses_that_are_not_finite_are_refused(two: Group) -> None:
    for said in two.run(train_apart):
        assert said == [
            "DDP float32: replicas differ after training",
            "DDP float32: the loss is inf",
        ]
