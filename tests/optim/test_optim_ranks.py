"""compressa.optim on real ranks: iterates are those of the papers, replicas the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import _optim_oracle as oracle
import numpy as np
import pytest
from _optim_oracle import SHAPES, Estimates, Gathered, TwoSided, majority, mean
from _optimized import (
    after_loading,
    evaluated_again,
    from_rank_0,
    gone_astray,
    lost,
    misused,
    momenta,
    of_another_dtype,
    opened,
    resumed,
    saved_apart,
    trained,
    volume,
)
from _ranks import Group, Pools, same
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from compressa.codecs import DeMo, OneBit, TopK
from compressa.parameters import ParameterInfo

pytestmark = pytest.mark.ranks

WEIGHT = SHAPES["weight"]
ONE_BIT = {"compressor": {"name": "onebit", "block": 32}, "dense_below": {"elems": 100}}
TWO_SIDED = {**ONE_BIT, "exchange": {"kind": "scatter_reduce"}}
ADAM = {"lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-3, "weight_decay": 0.1}
PLAIN = {"lr": 0.03, "weight_decay": 0.1}
STEPS = 14
DEMO = {"chunk": 16, "kept": 9}

HYPER: dict[str, dict[str, Any]] = {
    "OneBitAdam": {**ADAM, "warmup_steps": 5},
    "OneBitLamb": {**ADAM, "warmup_steps": 5},
    "ZeroOneAdam": {**ADAM, "warmup_steps": 6, "kappa": 2, "max_interval": 4},
    "DeMo": {**PLAIN, "decay": 0.95},
    "SignSGD": {**PLAIN, "momentum": 0.8},
    "EF21": {**PLAIN, "momentum": 0.7},
}
CONFIGS: dict[str, Any] = {
    "OneBitAdam": TWO_SIDED,
    "OneBitLamb": TWO_SIDED,
    "ZeroOneAdam": TWO_SIDED,
    "DeMo": {"compressor": {"name": "demo", **DEMO}, "exchange": {"kind": "all_gather"}},
    "SignSGD": None,
    "EF21": {"compressor": {"name": "topk", "density": 0.1}, "dense_below": {"elems": 100}},
}
KINDS = list(HYPER)
FEW = examples(
    max_examples=6,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def combined(kind: str, name: str, ranks: int, hyper: dict[str, Any]) -> oracle.Combine:
    """What arrives of a parameter."""
    if kind == "SignSGD":
        return majority
    if kind == "DeMo":
        codec = DeMo(**DEMO).for_parameter(ParameterInfo(0, name, SHAPES[name]))
        return Gathered(codec, ranks, SHAPES[name], hyper["decay"])
    if name == "bias":  # too small to be compressed
        return mean
    if kind == "EF21":
        return Estimates(TopK(density=0.1), ranks, WEIGHT)
    return TwoSided(OneBit(block=32), ranks, WEIGHT)


CLASSES: dict[str, type[oracle.Optimizer]] = {
    "OneBitAdam": oracle.OneBitAdam,
    "OneBitLamb": oracle.OneBitLamb,
    "ZeroOneAdam": oracle.ZeroOneAdam,
    "DeMo": oracle.DeMo,
    "SignSGD": oracle.Momentum,
    "EF21": oracle.Momentum,
}


def expected(
    kind: str, hyper: dict[str, Any], ranks: int, steps: int, rates: list[float], **own: Any
) -> list[dict[str, list[oracle.Array]]]:
    """Every rank's parameters after each step; `own` are settings of one parameter."""
    models = {}
    for name in SHAPES:
        settings = {**hyper, **own.get(name, {})}
        combine = combined(kind, name, ranks, settings)
        models[name] = CLASSES[kind](name, ranks, combine, **settings)
    first = {name: model.hyper["lr"] for name, model in models.items()}
    history = []
    for step in range(steps):
        for name, model in models.items():
            model.hyper["lr"] = first[name] * (rates[step] if rates else 1.0)
        history.append({name: model.step() for name, model in models.items()})
    return history


def check(found: list[Any], due: list[dict[str, list[oracle.Array]]]) -> None:
    assert len(due) == len(found[0]["history"])
    for step, values in enumerate(due):
        for name, per_rank in values.items():
            for rank, value in enumerate(per_rank):
                got = found[rank]["history"][step][name]
                told = f"step {step}, rank {rank}, {name}"
                np.testing.assert_allclose(got, value, rtol=1e-6, atol=5e-6, err_msg=told)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_iterates_are_those_of_the_paper(kind: str, ranks: int, pools: Pools) -> None:
    rates = [1.0] * 7 + [0.5] * 3 + [0.25] * (STEPS - 10)
    how = {"kind": kind, "hyper": HYPER[kind], "config": CONFIGS[kind], "steps": STEPS}
    found = pools.get(ranks).run(trained, **how, rates=rates)
    check(found, expected(kind, HYPER[kind], ranks, STEPS, rates))
    if kind == "ZeroOneAdam":
        apart = [len({f["digests"][step] for f in found}) > 1 for step in range(STEPS)]
        assert any(apart), "ranks never took a step alone"
        assert not all(apart[8:]), "ranks never met"
    else:
        same([f["digests"] for f in found])  # the same bits in each step


@FEW
@given(
    lr=st.floats(1e-3, 0.03),
    betas=st.tuples(st.floats(0.0, 0.95), st.floats(0.5, 0.999)),
    weight_decay=st.floats(0.0, 0.5),
    warmup=st.integers(1, 6),
)
def test_one_bit_adam_follows_its_settings(
    lr: float, betas: tuple[float, float], weight_decay: float, warmup: int, pools: Pools
) -> None:
    # A small eps has small variances, of which float32 knows few digits, move parameters far.
    hyper = {"lr": lr, "betas": betas, "eps": 0.1, "weight_decay": weight_decay}
    hyper["warmup_steps"] = warmup
    found = pools.get(2).run(trained, kind="OneBitAdam", hyper=hyper, config=TWO_SIDED, steps=8)
    check(found, expected("OneBitAdam", hyper, 2, 8, []))


@pytest.mark.parametrize("kind", ["DeMo", "SignSGD", "EF21"])
@FEW
@given(lr=st.floats(1e-3, 0.1), beta=st.floats(0.0, 0.99), weight_decay=st.floats(0.0, 0.5))
def test_momenta_of_ranks_follow_their_settings(
    kind: str, lr: float, beta: float, weight_decay: float, pools: Pools
) -> None:
    hyper = {
        "lr": lr,
        "weight_decay": weight_decay,
        "decay" if kind == "DeMo" else "momentum": beta,
    }
    found = pools.get(2).run(trained, kind=kind, hyper=hyper, config=CONFIGS[kind], steps=6)
    check(found, expected(kind, hyper, 2, 6, []))


@pytest.mark.parametrize("kind", KINDS)
def test_groups_have_settings_of_their_own(kind: str, two: Group) -> None:
    own: list[dict[str, Any]] = [{"lr": 0.05, "weight_decay": 0.0}, {"lr": 0.004}]
    if "betas" in HYPER[kind]:
        own[1]["betas"] = (0.7, 0.9)
    how = {"kind": kind, "hyper": HYPER[kind], "config": CONFIGS[kind], "steps": 8}
    found = two.run(trained, **how, groups=own)
    given_own = dict(zip(SHAPES, own, strict=True))
    check(found, expected(kind, HYPER[kind], 2, 8, [], **given_own))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_gives_the_bits_of_foreach(kind: str, two: Group) -> None:
    how = {"kind": kind, "config": CONFIGS[kind], "steps": 10, "named": False}
    ways = [
        two.run(trained, hyper={**HYPER[kind], "foreach": foreach}, **how)
        for foreach in (True, False)
    ]
    assert [f["digests"] for f in ways[0]] == [f["digests"] for f in ways[1]]


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_repeats_its_bits(kind: str, fresh: bool, two: Group, tmp_path: Path) -> None:
    config = {**(CONFIGS[kind] or {}), "integrity": {"every": 1}}
    how = {"kind": kind, "hyper": HYPER[kind], "config": config, "fresh": fresh}
    straight, again = same(two.run(resumed, **how, steps=7, folder=str(tmp_path)))
    assert straight == again


@pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLamb"])
def test_a_state_past_the_warm_up_goes_on_compressed(kind: str, two: Group) -> None:
    how = {"kind": kind, "hyper": HYPER[kind], "config": TWO_SIDED}
    assert all(ratio > 6 for ratio in two.run(after_loading, **how))


@pytest.mark.parametrize("kind", ["SignSGD", "EF21"])
def test_another_number_of_ranks_goes_on_with_the_mean_of_momenta(
    kind: str, two: Group, four: Group, tmp_path: Path
) -> None:
    how = {"kind": kind, "hyper": HYPER[kind], "folder": str(tmp_path)}
    saved = two.run(momenta, **how, saves=True)
    loaded = four.run(momenta, **how, saves=False)
    np.testing.assert_allclose(np.mean(loaded, axis=0), np.mean(saved, axis=0), rtol=1e-6)


def test_a_gradient_that_is_none_counts_as_zero(
    two: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    hyper, plain = HYPER["OneBitAdam"], oracle.gradient
    found = two.run(trained, kind="OneBitAdam", hyper=hyper, config=TWO_SIDED, steps=8, absent=1)

    def without(name: str, value: oracle.Array, rank: int, step: int) -> oracle.Array:
        return plain(name, value, rank, step) * (name != "bias" or rank != 1)

    monkeypatch.setattr(oracle, "gradient", without)
    check(found, expected("OneBitAdam", hyper, 2, 8, []))


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_begin_with_rank_0s_values(kind: str, two: Group) -> None:
    start = same(two.run(from_rank_0, kind=kind, hyper=HYPER[kind]))
    np.testing.assert_array_equal(start["weight"], oracle.initial()["weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_that_differ_are_told(kind: str, two: Group) -> None:
    for said in two.refused(gone_astray, "StateError", kind=kind, hyper=HYPER[kind]):
        assert "'weight'" in said


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_rank_is_named(kind: str, pools: Pools) -> None:
    group = pools.fresh(2)
    waits = {"silence_s": 5.0, "heartbeat_s": 0.5, "deadline_s": 30.0}
    sections = {**(CONFIGS[kind] or {}), "exchange": waits}
    how = {"kind": kind, "hyper": HYPER[kind], "config": sections}
    outcomes = group.outcomes(lost, **how, step=4)
    group.end()
    assert outcomes[0].value is not None, outcomes[0].explain()
    assert outcomes[0].value[0] == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLamb", "SignSGD"])
def test_what_is_kept_is_float32(kind: str, dtype: str, two: Group) -> None:
    found = two.run(of_another_dtype, kind=kind, hyper=HYPER[kind], dtype=dtype, steps=7)
    _, moved, kept = same(found)
    assert 0 < moved < 1
    assert set(kept) <= {"torch.float32"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_volume_of_1_bit_adam_is_the_papers(ranks: int, pools: Pools) -> None:
    warm, steps, elems = 10, 50, 1 << 18
    hyper = {"warmup_steps": warm}
    counted = pools.get(ranks).run(volume, kind="OneBitAdam", hyper=hyper, steps=steps, elems=elems)
    w = warm / steps
    for sent, dense in counted:
        # Of float32, where the paper's 1 / (w + (1 - w) / 16) is of 16 bits; and a scale per 1024.
        bits = 1 + 32 / 1024
        assert dense / sent == pytest.approx(1 / (w + (1 - w) * bits / 32), rel=0.005)
        assert dense / sent == pytest.approx(1 / (w + (1 - w) / 32), rel=0.01)


def test_the_volume_of_0_1_adam_is_less_than_a_bit(two: Group) -> None:
    hyper = {"warmup_steps": 64, "kappa": 4}
    counted = two.run(volume, kind="ZeroOneAdam", hyper=hyper, steps=200, elems=1 << 16)
    dense_steps = [0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 36, 44, 52, 60]
    for sent, dense in counted:
        share = len(dense_steps) / 200
        assert dense / sent == pytest.approx(1 / (share + (1 - share) / 31), rel=0.01)


REFUSED: list[tuple[str, dict[str, Any], Any, str]] = [
    ("OneBitAdam", {"warmup_steps": -1}, None, "at least 1"),
    ("OneBitAdam", {"warmup_steps": 0}, None, "variance is learnt"),
    ("OneBitAdam", {"warmup_steps": 2, "lr": -1.0}, None, "lr = -1.0; it must be at least 0"),
    ("OneBitAdam", {"warmup_steps": 2, "betas": (0.9, 1.0)}, None, "in [0.0, 1.0)"),
    ("OneBitAdam", {"warmup_steps": 2, "eps": -1.0}, None, "eps = -1.0"),
    ("OneBitAdam", {"warmup_steps": 2.5}, None, "a number of steps"),
    ("OneBitAdam", {"warmup_steps": 2, "betas": (0.9,)}, None, "two numbers"),
    ("OneBitAdam", {"warmup_steps": 2, "lr": "fast"}, None, "lr = fast"),
    ("OneBitAdam", {"warmup_steps": 2}, {"compressor": "signsgd"}, "no momentum"),
    ("OneBitAdam", {"warmup_steps": 2}, {"warmup": {"steps": 5}}, "leave it out"),
    ("OneBitAdam", {"warmup_steps": 2}, {"compressor": "onebitt"}, "onebit"),
    ("OneBitAdam", {"warmup_steps": 2}, {"engine": {"recover": True}}, "checkpoint"),
    ("OneBitAdam", {"warmup_steps": 2}, {"strategy": "local_sgd"}, "compressa.attach"),
    ("OneBitLamb", {"warmup_steps": 2, "scaling_limits": (3.0, 1.0)}, None, "smaller one first"),
    ("OneBitLamb", {"warmup_steps": 2, "factor_change": 1.5}, None, "factor_change"),
    ("ZeroOneAdam", {"warmup_steps": 2, "kappa": 0}, None, "kappa = 0"),
    ("DeMo", {"decay": 1.5}, None, "decay"),
    ("DeMo", {"weight_decay": -0.1}, None, "weight_decay"),
    ("SignSGD", {"momentum": 1.0}, None, "momentum = 1.0"),
    ("SignSGD", {}, {"compressor": "int8"}, "signsgd"),
    ("SignSGD", {}, {"warmup": {"steps": 3}}, "signsgd"),
    ("EF21", {}, {"compressor": {"name": "powersgd", "rank": 1}}, "ef21"),
    ("EF21", {}, {"feedback": {"kind": "none"}}, "leave it out"),
]


@pytest.mark.parametrize(("kind", "hyper", "config", "words"), REFUSED)
def test_what_can_not_be_is_refused_on_every_rank(
    kind: str, hyper: dict[str, Any], config: Any, words: str, two: Group
) -> None:
    said = two.refused(opened, "ConfigError", kind=kind, hyper=hyper, config=config)
    for each in said:
        assert words in each


def test_ranks_must_have_the_same_settings(two: Group) -> None:
    for other in ({"warmup_steps": 3}, {"warmup_steps": 2, "lr": 0.5}, {"warmup_steps": -2}):
        two.refused(opened, "ConfigError", hyper={"warmup_steps": 2}, differs=other)


def test_doubles_are_refused(two: Group) -> None:
    said = two.refused(opened, "ConfigError", hyper={"warmup_steps": 2}, dtype="float64")
    assert "kept in float32" in same(said)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("scaled", "bfloat16"),
        ("sparse", "sparse=False"),
        ("thawed", "make another"),
        ("late group", "one of all groups"),
    ],
)
def test_steps_that_can_not_be_say_why(how: str, words: str, two: Group) -> None:
    assert words in same(two.refused(misused, "StateError", how=how))


def test_between_two_meetings_there_is_nothing_to_save(two: Group, tmp_path: Path) -> None:
    said = two.refused(saved_apart, "StateError", folder=str(tmp_path))
    assert "call sync() first" in same(said)


def test_a_closure_is_called(two: Group) -> None:
    assert same(two.run(evaluated_again, hyper={"warmup_steps": 1})) == 7.5
