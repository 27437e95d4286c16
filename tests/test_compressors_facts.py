"""The facts of each compressor: taken from what it declares, and true of what it does."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compressa.codecs import Bounded, Codec
from compressa.compressors import COMPRESSORS, Family
from compressa.config import assign, load_config
from compressa.errors import ConfigError
from compressa.facts import RANKS, SHAPE, Facts, facts, find, survey
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld

PARAMETER = ParameterInfo(0, "weight", SHAPE)


@pytest.fixture(scope="module")
def found() -> dict[str, Facts]:
    return {name: facts(entry) for name, entry in COMPRESSORS.items()}


def test_the_survey_has_every_compressor_in_the_table_s_order(found: dict[str, Facts]) -> None:
    listed, problems = survey()
    assert listed == list(found.values())
    assert [own.name for own in listed] == list(COMPRESSORS)
    assert problems == []


def test_facts_are_plain_json(found: dict[str, Facts]) -> None:
    for own in found.values():
        values = asdict(own)
        again = json.loads(json.dumps(values, allow_nan=False))
        assert again == values | {"summable": list(own.summable), "busiest": list(own.busiest)}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor_has_a_family_and_a_sentence(name: str) -> None:
    row = COMPRESSORS[name]
    assert row.family is not Family.OTHER
    assert row.summary.endswith(".")
    assert "\n" not in row.summary + row.paper


def world(name: str) -> LoopbackWorld:
    config = load_config({"compressor": name, "dense_below": {"elems": 0}})
    compressors = assign(config, [PARAMETER])
    return LoopbackWorld(RANKS, [PARAMETER], compressors, unit_bytes=4 * PARAMETER.elems)


def state_bytes(ranks: LoopbackWorld) -> list[int]:
    return [
        sum(vector.numel() * vector.element_size() for vector in state.vectors.values())
        for state in ranks.states
    ]


@pytest.mark.parametrize("name", COMPRESSORS)
def test_state_is_what_every_rank_keeps_from_the_first_step_on(
    name: str, found: dict[str, Facts]
) -> None:
    due = round(found[name].state_bytes * PARAMETER.elems)
    ranks = world(name)
    assert state_bytes(ranks) == [due] * RANKS
    for step in range(2):
        gradient = torch.randn(SHAPE, generator=torch.Generator().manual_seed(step))
        ranks.step([{"weight": gradient} for _ in range(RANKS)])
    assert state_bytes(ranks) == [due] * RANKS


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_a_rank_sends_agrees_with_ratio_and_exchange(
    name: str, found: dict[str, Facts]
) -> None:
    own, ranks = found[name], world(name)
    gradient = torch.randn(SHAPE, generator=torch.Generator().manual_seed(7))
    before = sum(map(ranks.sent_bytes, range(RANKS)))
    ranks.step([{"weight": gradient} for _ in range(RANKS)])
    payload = 4 * PARAMETER.elems / own.ratio
    copies = RANKS - 1 if own.exchange == "all-gather" else 2 * (RANKS - 1) / RANKS
    sent = (sum(map(ranks.sent_bytes, range(RANKS))) - before) / RANKS  # one rank may lead
    # Headers, padding and shards that do not divide; a size that varies may be smaller.
    assert sent <= 1.02 * copies * payload + 2000
    assert own.exact_size is False or sent >= 0.98 * copies * payload


def test_facts_of_a_codec_are_those_that_it_declares(found: dict[str, Facts]) -> None:
    for name, row in COMPRESSORS.items():
        compressor, own = row.compressor().for_parameter(PARAMETER), found[name]
        assert own.kind == ("codec" if isinstance(compressor, Codec) else "aggregator")
        if isinstance(compressor, Codec):
            assert own.exact_size is not isinstance(compressor.size, Bounded)
            assert bool(own.summable) is (compressor.reduce is not None)
            assert own.bound in (None, *asdict(compressor.bias(PARAMETER.elems)).values())


def test_some_facts_are_as_the_papers_say(found: dict[str, Facts]) -> None:
    assert found["none"].error_text == "exact"
    assert found["topk"].error_text == "delta >= 0.0100; error feedback"
    assert found["fp16"].error_text.startswith("relative error <= 0.00048")
    assert found["powersgd"].error_text == "no stated bound; error feedback built in"
    assert found["intsgd"].error_text == "unbiased, omega <= 31.8 on 4 ranks"
    assert found["terngrad_shared"].error_text == "biased, squared error <= 4.38 on 4 ranks"
    assert found["powersgd"].exchange == "2 x all-reduce"
    assert found["randomk"].summable_text == "in float32"
    assert found["int8"].summable_text == "no"
    assert {name: found[name].state_bytes for name in ("none", "fp16", "int8", "topk")} == {
        "none": 0.0, "fp16": 0.0, "int8": 4.0, "topk": 4.0
    }  # fmt: skip


BOUNDS = st.floats(1e-9, 1.0, exclude_max=True)


@given(bound=BOUNDS, kind=st.sampled_from(["unbiased", "biased", "contraction"]))
def test_a_bound_is_rounded_to_the_side_on_which_it_holds(bound: float, kind: str) -> None:
    template = facts(COMPRESSORS["topk"])
    text = replace(template, bias=kind, bound=bound).bias_text
    shown = Decimal(text.rpartition(" ")[2])
    assert (shown <= bound) if kind == "contraction" else (shown >= bound)
    assert math.isclose(shown, bound, rel_tol=0.011)
    relative = replace(template, bias="contraction", bound=bound, feedback="none").bias_text
    assert Decimal(relative.rpartition(" ")[2]) >= math.sqrt(1 - bound)


def test_a_contraction_that_may_keep_nothing_says_so() -> None:
    assert replace(facts(COMPRESSORS["topk"]), bound=0.0).bias_text == "delta >= 0"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'"topkk" is not a compressor; .* did you mean "topk"'):
        find("topkk")
