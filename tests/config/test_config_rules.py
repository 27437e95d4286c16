"""Rules decide in order, and every parameter gets its compressor with its wrappers."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest

from compressa.codecs import Int8, NoCompression, OneBit, RandomK, TopK
from compressa.codecs.base import codec_of
from compressa.config import ConfigWarning, assign, load_config
from compressa.config.rules import matcher
from compressa.config.settings import Match
from compressa.parameters import ParameterInfo, Role
from compressa.wrappers import (
    EF21,
    DenseBelow,
    DensitySchedule,
    ErrorFeedback,
    FeedbackRule,
    MomentumCorrection,
    Warmup,
)

PARAMETERS = (
    ParameterInfo(0, "embed.weight", (1000, 64), role=Role.EMBEDDING),
    ParameterInfo(1, "blocks.0.norm.weight", (64,), role=Role.NORM),
    ParameterInfo(2, "blocks.0.mlp.weight", (256, 64)),
    ParameterInfo(3, "blocks.0.mlp.bias", (256,), role=Role.BIAS),
    ParameterInfo(4, "head.weight", (1000, 64), role=Role.OUTPUT),
)


def assigned(raw: dict[str, Any]) -> dict[str, Any]:
    return dict(assign(load_config({"dense_below": {"elems": 0}, **raw}), PARAMETERS))


def test_the_default_is_for_every_parameter() -> None:
    assert assigned({}) == {parameter.name: NoCompression() for parameter in PARAMETERS}


def test_the_first_rule_that_matches_decides() -> None:
    rules = [
        {"match": {"name": "blocks.*.weight", "ndim": 2}, "compressor": "onebit"},
        {"match": {"name": "blocks.*"}, "compressor": "none"},
        {"match": {"role": ["embedding", "norm"]}, "compressor": "randomk"},
    ]
    found = assigned({"compressor": "int8", "rules": rules})
    inner = [codec_of(compressor) for compressor in found.values()]
    assert inner == [RandomK(), NoCompression(), OneBit(), NoCompression(), Int8()]
    assert list(found) == [parameter.name for parameter in PARAMETERS]


@pytest.mark.parametrize(
    ("match", "indices"),
    [
        ({"name": "*.weight"}, [0, 1, 2, 4]),
        ({"name": ["head.*", "*norm*"]}, [1, 4]),
        ({"name": "HEAD.*"}, []),
        ({"role": "bias"}, [3]),
        ({"shape": ["*", 64]}, [0, 2, 4]),
        ({"shape": [256, "*"]}, [2]),
        ({"shape": ["*"]}, [1, 3]),
        ({"shape": []}, []),
        ({"ndim": 1}, [1, 3]),
        ({"min_elems": 256}, [0, 2, 3, 4]),
        ({"max_elems": 256}, [1, 3]),
        ({"min_elems": 65, "max_elems": 16384, "name": "*.mlp.*"}, [2, 3]),
        ({"role": "norm", "ndim": 2}, []),
    ],
)
def test_all_given_conditions_must_hold(match: dict[str, Any], indices: list[int]) -> None:
    condition = Match.model_validate(match)
    assert [p.index for p in PARAMETERS if matcher(condition)(p)] == indices


def test_feedback_of_every_kind_and_rule_follows_the_setting() -> None:
    def of(compressor: Any, **feedback: Any) -> Any:
        return assigned({"compressor": compressor, "feedback": feedback})["head.weight"]

    unbiased = {"name": "randomk", "unbiased": True}
    assert of("topk") == ErrorFeedback(codec=TopK())
    assert of("topk", owner=False) == ErrorFeedback(codec=TopK(), rule=FeedbackRule(owner=False))
    assert of("topk", kind="none") == TopK()
    assert of(unbiased) == RandomK(unbiased=True)
    assert of("none", kind="error") == NoCompression()
    assert not isinstance(of("bf16"), ErrorFeedback)
    assert isinstance(of("bf16", kind="error"), ErrorFeedback)
    assert of("powersgd").name == "powersgd"
    assert of("topk", kind="ef21") == EF21(codec=TopK())
    assert of("topk", kind="scaled") == ErrorFeedback(codec=TopK(), scaled=True)
    assert of(unbiased, kind="scaled") == ErrorFeedback(codec=RandomK(unbiased=True), scaled=True)
    rule = {"dtype": "int8", "decay": 0.5, "beta": 0.25, "reset_steps": 7}
    assert of("topk", **rule) == ErrorFeedback(codec=TopK(), rule=FeedbackRule(**rule))


def test_momentum_is_for_every_parameter_however_it_travels() -> None:
    found = assigned(
        {
            "compressor": "topk",
            "momentum": {"factor": 0.8, "clip_norm": 2.0},
            "dense_below": {"elems": 100},
            "warmup": {"steps": 5},
            "rules": [{"match": {"role": "bias"}, "compressor": "none"}],
        }
    )
    hyper: dict[str, Any] = {"factor": 0.8, "clip_norm": 2.0}
    sparse = MomentumCorrection(compressor=ErrorFeedback(codec=TopK()), **hyper)
    dense = MomentumCorrection(compressor=NoCompression(), **hyper)
    assert found["blocks.0.mlp.bias"] == dense
    head = found["head.weight"]
    assert (head.steps, head.dense) == (5, dense)
    assert head.compressor == DenseBelow(compressor=sparse, elems=100, dense=dense)


def test_a_warm_up_by_densities_is_for_what_has_one() -> None:
    found = assigned(
        {
            "compressor": "topk",
            "warmup": {"steps": 40, "densities": [0.25, 0.063]},
            "rules": [{"match": {"role": "output"}, "compressor": "int8"}],
        }
    )
    scheduled = DensitySchedule(
        compressor=ErrorFeedback(codec=TopK()), steps=40, densities=(0.25, 0.063)
    )
    assert found["embed.weight"] == scheduled
    assert found["head.weight"] == ErrorFeedback(codec=Int8())


def test_a_rule_s_feedback_comes_before_the_general_one() -> None:
    rule = {"match": {"role": "output"}, "compressor": "int8", "feedback": "none"}
    found = assigned({"compressor": "int8", "rules": [rule]})
    assert found["head.weight"] == Int8()
    assert found["embed.weight"] == ErrorFeedback(codec=Int8())


def test_wrappers_go_round_each_other_in_order() -> None:
    raw = {
        "compressor": "onebit",
        "dense_below": {"elems": 100},
        "warmup": {"steps": 5, "compressor": "bf16"},
    }
    found = assigned(raw)["head.weight"]
    assert isinstance(found, Warmup)
    assert (found.steps, found.dense.name) == (5, "bf16")
    inner = DenseBelow(compressor=ErrorFeedback(codec=OneBit()), elems=100)
    assert found.compressor == inner


def test_wrappers_without_effect_are_left_out() -> None:
    found = assigned({"dense_below": {"elems": 100}, "warmup": {"steps": 5}})
    assert set(found.values()) == {NoCompression()}


def test_small_parameters_are_dense_and_share_a_compressor() -> None:
    found = assigned({"compressor": "onebit", "dense_below": {"elems": 1024}})
    dense = [found[p.name].for_parameter(p).name for p in PARAMETERS]
    assert dense == ["error_feedback", "none", "error_feedback", "none", "error_feedback"]
    assert len(set(found.values())) == 1


def warning_text(*rules: dict[str, Any]) -> str:
    with pytest.warns(ConfigWarning) as caught:
        assigned({"rules": [{**rule, "compressor": "int8"} for rule in rules]})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    return str(caught[0].message)


def test_a_rule_that_matches_nothing_warns_with_near_names() -> None:
    text = warning_text({"match": {"name": "emebd.*"}})
    assert text.startswith("rules[0] (name = 'emebd.*') has no effect: it matches no parameter")
    assert "the nearest names are embed.weight" in text


def test_a_rule_that_no_size_or_role_fits_warns_with_what_there_is() -> None:
    text = warning_text({"match": {"min_elems": 10**9}})
    assert "the roles here are weight, bias, norm, embedding, output" in text
    assert "the sizes 64 to 64000 elements" in text


def test_a_rule_behind_others_warns_that_they_take_all() -> None:
    text = warning_text({"match": {"ndim": 2}}, {"match": {"role": "output"}})
    assert text.startswith("rules[1] (role = 'output') has no effect: earlier rules take every")


def test_rules_with_an_effect_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assigned({"rules": [{"match": {"role": "norm"}, "compressor": "none"}]})


def test_no_parameters_are_no_error() -> None:
    assert assign(load_config({"compressor": "int8"}), ()) == {}


def seconds_to_assign(count: int) -> float:
    """How long so many rules take that match nothing, among them every kind of pattern."""
    names = ["p{}", "p{}.*", "[ab]{}", "?{}"]
    matches = [{"name": names[i % 4].format(i)} for i in range(count)]
    config = load_config({"rules": [{"match": m, "compressor": "int8"} for m in matches]})
    parameters = [ParameterInfo(i, f"layers.{i}.weight", (3,)) for i in range(50)]
    started_s = time.process_time()
    with pytest.warns(ConfigWarning) as warned:
        assign(config, parameters)
    assert len(warned) == 11
    assert str(warned[-1].message) == f"{count - 10} more rules have no effect"
    return time.process_time() - started_s


def test_many_rules_take_time_in_proportion() -> None:
    seconds_to_assign(2000)
    assert seconds_to_assign(8000) < 8 * seconds_to_assign(2000)


def test_many_names_in_one_rule_are_looked_up_once() -> None:
    names = [f"layers.{i}.weight" for i in range(100_000)]
    config = load_config({"rules": [{"match": {"name": names}, "compressor": "int8"}]})
    started_s = time.process_time()
    chosen = assign(config, [ParameterInfo(i, names[-i], (3,)) for i in range(1, 1000)])
    assert time.process_time() - started_s < 2.0
    assert len(chosen) == 999
