"""Strategies in a configuration: told apart by name, and refused where they can not work."""

from __future__ import annotations

from typing import Any

import pytest

from compressa.config import config_toml, load_config
from compressa.config.strategies import STRATEGIES
from compressa.errors import ConfigError
from compressa.strategies.opening import OPENERS


def test_each_strategy_that_can_be_named_is_opened() -> None:
    assert [*OPENERS] == [*STRATEGIES]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_name_stands_for_all_defaults_and_survives_toml(name: str) -> None:
    config = load_config({"strategy": name})
    assert config == load_config({"strategy": {"name": name}})
    assert f'[strategy]\nname = "{name}"' in config_toml(config)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("diloko", 'is not a strategy; must be one of "hook"'),
        ({"every": 3}, 'has no name; give name = one of "hook"'),
        (3, 'must be a table such as { name = "diloco" }'),
        ({"name": "diloco", "evry": 3}, 'evry: is not a setting; did you mean "every"?'),
        ({"name": "local_sgd", "every": 0}, "every: must be at least 1"),
        ({"name": "local_sgd", "adapt": "rate", "longest": 2}, "longest: is 2, less than every"),
        ({"name": "easgd", "pull": 1.5}, "pull: must be greater than 0 and at most 1"),
        ({"name": "post_local_sgd", "after_steps": 0}, "after_steps: must be at least 1"),
        ({"name": "diloco", "fragments": 101}, "have room for no more"),
        ({"name": "diloco", "fragments": 4, "overlap_steps": 26}, "use at most 25"),
        ({"name": "diloco", "every": 4, "overlap_steps": 4}, "use at most 3"),
        ({"name": "diloco", "outer_momentum": 0.0}, "outer_momentum = 0"),
        ({"name": "gossip", "graph": "star"}, 'must be one of "ring"'),
        ({"name": "gossip", "weights": [[1.0, 0.0], [0.0, 1.0]]}, "weights: is of a graph that is"),
        ({"name": "gossip", "weights": [[0.0, 1.0], [1.0, 0.0]]}, "ranks swap parameters forever"),
        ({"name": "gossip", "weights": [[0.5, 0.4], [0.4, 0.5]]}, "weights of a rank sum to 1"),
        ({"name": "sgp", "graph": "torus"}, 'must be one of "exponential"'),
        ({"name": "sgp", "weights": [[0.5, 0.4], [0.4, 0.6]]}, "column 0 that sums to 0.9"),
        ({"name": "sgp", "weights": [[1.0, 0.5], [0.0, 0.5]]}, "is not strongly connected"),
        ({"name": "sgp", "weights": [[0.0, 1.0], [1.0, 0.0]]}, "shares that go round forever"),
        ({"name": "gossip", "consensus": 0.0}, "consensus: must be greater than 0"),
        ({"name": "bounded", "staleness": -1}, "staleness: must be at least 0"),
        ({"name": "bounded", "backup_workers": 1}, "nobody can tell whose update is too late"),
        ({"name": "bounded", "staleness": 0, "weighting": "sum"}, "all updates are alike"),
        ({"name": "bounded", "staleness": 0, "delay_compensation": 0.1}, "nothing is delayed"),
        ({"name": "ad_psgd", "graph": "star"}, 'must be one of "ring"'),
        ({"name": "async", "weighting": "max"}, 'weighting: "max" is not allowed'),
        ({"name": "async", "staleness": 3}, "staleness: is not a setting"),
    ],
)
def test_a_mistake_is_refused_with_what_would_be_right(strategy: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config({"strategy": strategy})
    assert said in str(refused.value)


def test_a_distance_that_comes_again_has_no_residual() -> None:
    load_config({"strategy": "easgd", "compressor": "qsgd"})
    load_config({"strategy": "easgd", "compressor": "int8", "feedback": {"kind": "none"}})
    for beside, said in (
        ({"compressor": "int8"}, 'a residual would add it up; use "none"'),
        ({"compressor": "topk", "feedback": {"kind": "none"}}, "loses much of a distance"),
        ({"compressor": "powersgd"}, "use int8, int4 or an unbiased one"),
    ):
        with pytest.raises(ConfigError) as refused:
            load_config({"strategy": "easgd", **beside})
        assert said in str(refused.value)


def test_what_supposes_a_mean_in_each_step_is_refused() -> None:
    beside = {"momentum": {"factor": 0.9}, "engine": {"recover": True}, "compressor": "topk"}
    load_config({"strategy": "hook", **beside})
    with pytest.raises(ConfigError) as refused:
        load_config({"strategy": "hogwild", **beside})
    assert "momentum.factor" in str(refused.value)
    assert "engine.recover" in str(refused.value)


def test_what_sends_nothing_has_no_compressor() -> None:
    rule = {"match": {"name": "*"}, "compressor": "int8"}
    warmup = {"steps": 3, "compressor": "fp16"}
    for beside, place in (
        ({"compressor": "onebit"}, "compressor.name: "),
        ({"rules": [rule]}, r"rules\[0\].compressor.name: "),
        ({"warmup": warmup}, "warmup.compressor.name: "),
    ):
        with pytest.raises(ConfigError, match=f"{place}.*hogwild.*sends nothing"):
            load_config({"strategy": "hogwild", **beside})


def test_who_averages_parameters_goes_on_without_a_lost_rank() -> None:
    beside = {"engine": {"recover": True}}
    for name in ("local_sgd", "post_local_sgd", "diloco", "easgd", "gossip"):
        load_config({"strategy": name, **beside})
    own = {"name": "gossip", "weights": [[0.5, 0.5], [0.5, 0.5]]}
    with pytest.raises(
        ConfigError, match=r"weights are those of all ranks.*name a strategy\.graph"
    ):
        load_config({"strategy": own, **beside})


@pytest.mark.parametrize("name", ["ad_psgd", "async", "bounded", "central"])
def test_who_does_not_wait_takes_what_is_decoded_by_itself(name: str) -> None:
    load_config({"strategy": name, "compressor": "topk"})
    for beside, said in (
        ({"compressor": "powersgd"}, "powersgd exchanges in rounds of its own, with all ranks"),
        ({"exchange": {"kind": "all_gather"}}, f"{name} has an exchange of its own"),
        ({"warmup": {"steps": 10}}, "keeps one compressor for all steps"),
        ({"trace": {"path": "trace.json"}}, "has no steps that all ranks take"),
        ({"exchange": {"algorithm": "ring"}}, f"{name} has an exchange of its own"),
        ({"schedule": {"server_bits_per_s": 1e9}}, "gives slots to workers that push together"),
    ):
        with pytest.raises(ConfigError) as refused:
            load_config({"strategy": name, **beside})
        assert said in str(refused.value)


@pytest.mark.parametrize("name", ["gossip", "ad_psgd"])
def test_gossip_takes_what_needs_no_sum_over_all_ranks(name: str) -> None:
    load_config({"strategy": name, "compressor": "topk"})
    for beside, said in (
        ({"compressor": "powersgd"}, "powersgd exchanges in rounds of its own, with all ranks"),
        (
            {"compressor": "int8", "feedback": {"kind": "error"}},
            "keeps what was not sent by itself",
        ),
        ({"exchange": {"kind": "all_gather"}}, f"{name} has an exchange of its own"),
    ):
        with pytest.raises(ConfigError) as refused:
            load_config({"strategy": name, **beside})
        assert said in str(refused.value)


def test_sgp_takes_what_sends_most_of_a_share() -> None:
    for name in ("none", "fp16", "int8", "int4", "natural"):
        load_config({"strategy": "sgp", "compressor": name})
    for beside, said in (
        ({"compressor": "powersgd"}, "powersgd exchanges in rounds of its own, with all ranks"),
        ({"compressor": "terngrad_shared"}, "in rounds of its own, with all ranks"),
        ({"compressor": "topk"}, "may send little of a share, whose weight is sent whole"),
        ({"compressor": "qsgd"}, "may send little of a share, whose weight is sent whole"),
        ({"compressor": "int8", "feedback": {"kind": "error"}}, "keeps what was not sent"),
        ({"exchange": {"kind": "all_gather"}}, "sgp has an exchange of its own"),
    ):
        with pytest.raises(ConfigError) as refused:
            load_config({"strategy": "sgp", **beside})
        assert said in str(refused.value)
