"""attach on real ranks: what is saved, refused and told, whatever the strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _attached import (
    attached,
    embedded,
    every_step,
    go_on,
    history,
    left_without_sync,
    lost,
    meetings,
    meetings_after_a_restart,
    moved,
    of_16_bits,
    opened_otherwise,
    resumed,
    saved_apart,
    saved_before_a_meeting,
    scaled,
    step_by_itself,
    switched,
)
from _buffers import buffers, running_means
from _ranks import Group, Pools, same, settings

from compressa.tracing.reader import read

pytestmark = pytest.mark.ranks

READY = Path(__file__).parents[2] / "experiments" / "configs"
STREAMING = {
    "name": "diloco",
    "every": 6,
    "fragments": 2,
    "overlap_steps": 2,
    "mixing": 0.5,
}
APART: list[dict[str, Any]] = [
    {"name": "local_sgd", "every": 3},
    {"name": "post_local_sgd", "every": 3, "after_steps": 4},
    {"name": "diloco", "every": 3},
    STREAMING,
    {"name": "easgd", "every": 3},
]


@pytest.mark.parametrize("compressor", ["none", "int4", "topk", "powersgd"])
@pytest.mark.parametrize("strategy", APART, ids=lambda s: s["name"] + str(len(s)))
def test_a_resumed_run_repeats_its_bits_and_replicas_are_the_same(
    strategy: dict[str, Any], compressor: str, two: Group, tmp_path: Path
) -> None:
    config = settings(compressor, strategy=strategy, dense_below={"elems": 10})
    if strategy["name"] == "easgd":
        if compressor in ("topk", "powersgd"):
            pytest.skip("it is refused: what is not sent is in the next distance again")
        config["feedback"] = {"kind": "none"}
    found = two.run(resumed, config=config, folder=str(tmp_path), steps=7)
    for straight, again in found:
        assert straight == again
    same([values for (values, _), _ in found])


def test_another_number_of_ranks_goes_on_from_the_same_anchor(pools: Pools, tmp_path: Path) -> None:
    config = settings("int4", strategy=STREAMING)
    found = pools.get(2).run(resumed, config=config, folder=str(tmp_path), steps=6)
    more = pools.get(4).run(go_on, config=config, folder=str(tmp_path))
    assert len(found) == 2
    same(more)


def test_between_two_meetings_there_is_nothing_to_save(two: Group, tmp_path: Path) -> None:
    config = {"strategy": {"name": "local_sgd", "every": 3}}
    said = two.refused(saved_apart, "StateError", config=config, folder=str(tmp_path))
    assert "call strategy.sync() first" in same(said)


def test_ranks_meet_in_each_step_until_they_are_to_be_apart(two: Group) -> None:
    by_steps = {"name": "post_local_sgd", "every": 3, "after_steps": 4}
    found = two.run(meetings, config={"strategy": by_steps}, rates=[0.1] * 10)
    assert same(found) == [1, 2, 3, 4, 7, 10]
    by_decay = {"name": "post_local_sgd", "every": 3}
    rates = [0.05, 0.04, 0.025, 0.025, 0.025, 0.025, 0.01, 0.01, 0.01]
    assert same(two.run(meetings, config={"strategy": by_decay}, rates=rates)) == [1, 2, 3, 6, 9]


def test_h_follows_the_learning_rate_and_the_link(two: Group) -> None:
    by_rate = {"name": "local_sgd", "every": 2, "adapt": "rate", "rate_scale": 0.2, "longest": 5}
    rates = [0.1] * 8 + [0.05] * 6 + [0.1] * 7  # (0.2 / rate)^2 is 4, then 16; it rises at 15
    found = two.run(meetings, config={"strategy": by_rate}, rates=rates)
    assert same(found) == [2, 4, 8, 12, 17, 19]
    by_link = {"name": "local_sgd", "every": 1, "adapt": "link", "link_share": 0.001, "longest": 9}
    found = same(two.run(meetings, config={"strategy": by_link}, rates=[0.1] * 30))
    assert found[:2] == [1, 2]  # nothing was measured before the first
    assert np.diff(found)[1:].min() > 1


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "post_local_sgd", "every": 3},
        {"name": "local_sgd", "every": 2, "adapt": "rate", "rate_scale": 0.2, "longest": 5},
    ],
    ids=lambda strategy: strategy["name"],
)
def test_a_resumed_run_meets_when_it_would_have(
    strategy: dict[str, Any], two: Group, tmp_path: Path
) -> None:
    how = {"rates": [0.1] * 6 + [0.05] * 16, "at": 9, "folder": str(tmp_path)}
    found, again = same(two.run(meetings_after_a_restart, config={"strategy": strategy}, **how))
    assert found == again
    assert set(np.diff(found)) == {3 if strategy["name"] == "post_local_sgd" else 5}


@pytest.mark.parametrize("strategy", ["local_sgd", "gossip", "ad_psgd", "async", "central"])
def test_the_optimizers_own_step_is_refused_until_the_strategy_is_closed(
    strategy: str, two: Group
) -> None:
    for said in two.run(step_by_itself, config={"strategy": strategy}):
        assert "in place of strategy.step()" in said


@pytest.mark.parametrize("strategy", ["local_sgd", "diloco", "easgd", "gossip", "sgp"])
def test_a_trace_shows_each_meeting(strategy: str, two: Group, tmp_path: Path) -> None:
    config = {
        "strategy": {"name": strategy, "every": 2},
        "compressor": "int8",
        "feedback": {"kind": "none"} if strategy == "easgd" else {},
        "dense_below": {"elems": 0},
        "trace": {"path": str(tmp_path / "t.json")},
    }
    two.run(history, config=config, steps=6)
    for rank in (0, 1):
        trace = read(tmp_path / f"t-rank{rank}.json")
        stages = {
            step: {span.stage for span in trace.spans if span.step == step} for step in (0, 1, 2)
        }
        for found in stages.values():
            assert {"compress", "wire", "decompress"} <= found


def test_buffers_are_averaged_in_a_meeting(two: Group) -> None:
    found = two.run(buffers, config={"strategy": {"name": "local_sgd", "every": 10}}, steps=3)
    (first, after), (second, _) = found
    assert first != second
    np.testing.assert_allclose(after, np.mean([first, second], axis=0), rtol=1e-6)
    same([after for _, after in found])


@pytest.mark.parametrize("strategy", [None, "hook", "overlapped"])
def test_who_meets_in_each_step_has_the_bits_of_ddp(strategy: str | None, two: Group) -> None:
    config = {} if strategy is None else {"strategy": strategy}
    for plain, own in two.run(every_step, config=config, steps=5):
        assert plain == own


@pytest.mark.parametrize("strategy", ["local_sgd", "diloco", "gossip"])
def test_parameters_of_16_bits_train(strategy: str, two: Group) -> None:
    config = {"strategy": {"name": strategy, "every": 2}}
    (values,) = same(two.run(of_16_bits, config=config, steps=5))
    assert all(np.isfinite(value).all() for value in values.values())


def test_the_end_of_a_block_does_what_is_due(two: Group) -> None:
    for plain, overlapped in two.run(left_without_sync, steps=5):
        assert plain == overlapped


@pytest.mark.parametrize("strategy", ["hook", "local_sgd"])
def test_a_scaler_s_skipped_step_changes_nothing(strategy: str, two: Group) -> None:
    found = two.run(scaled, config={"strategy": strategy}, steps=9)
    values, scale = same(found)
    assert scale == 512.0
    assert all(np.isfinite(value).all() for value in values.values())


@pytest.mark.parametrize("strategy", APART, ids=lambda s: s["name"] + str(len(s)))
def test_a_lost_rank_is_named(strategy: dict[str, Any], pools: Pools) -> None:
    group = pools.fresh(3)
    config = settings("none", strategy=strategy, exchange={"silence_s": 5.0})
    outcomes = group.outcomes(lost, config=config, step=4)
    group.end()
    for outcome in outcomes:
        if outcome.rank != 1:
            assert outcome.value is not None, outcome.explain()
            assert outcome.value[0] == 1


@pytest.mark.parametrize(
    ("strategy", "kind", "error", "said"),
    [
        ("local_sgd", "ddp", "StateError", "hand over the network that it wraps"),
        ("diloco", "double", "ConfigError", "'first' is made of torch.float64"),
        ("diloco", "plain", "ConfigError", "SGD without momentum, which keeps no state"),
        ("easgd", "another optimizer", "StateError", "the optimizer has no parameter 'first'"),
        ("local_sgd", "frozen", "StateError", "no parameter to train"),
    ],
)
def test_what_does_not_fit_is_refused(
    strategy: str, kind: str, error: str, said: str, two: Group
) -> None:
    texts = two.refused(attached, error, config={"strategy": strategy}, kind=kind)
    assert said in same(texts)


def test_a_mistake_on_one_rank_is_told_to_all(two: Group) -> None:
    for config in ({"strategy": "easgd"}, {"strategy": "gossip"}, {"strategy": "overlapped"}, {}):
        texts = two.refused(attached, "ConfigError", config=config, kind="differs")
        assert all("nonsense" in text for text in texts)


@pytest.mark.parametrize(
    "by",
    ["register_comm_hook", "OverlappedDataParallel", "open_engine", "open_parameter_server"],
)
def test_who_does_not_follow_a_strategy_says_so(by: str, two: Group) -> None:
    texts = two.refused(opened_otherwise, "ConfigError", config={"strategy": "diloco"}, by=by)
    assert f'strategy.name = "diloco": {by.removeprefix("compressa.")}' in same(texts).replace(
        "compressa.", "", 1
    )


@pytest.mark.parametrize(
    "name",
    [
        "ad_psgd",
        "async",
        "bounded",
        "central",
        "diloco",
        "easgd",
        "gossip",
        "local_sgd",
        "post_local_sgd",
        "sgp",
    ],
)
def test_ready_files_train(name: str, two: Group) -> None:
    files = sorted(READY.glob(f"*{name}.toml"))
    assert files
    for file in files:
        found = two.run(history, config=str(file), steps=3)
        same([each[-1] for each in found])
        assert found[0][0] != found[0][-1]


@pytest.mark.parametrize("strategy", APART, ids=lambda s: s["name"] + str(len(s)))
def test_what_has_just_begun_can_be_saved(
    strategy: dict[str, Any], two: Group, tmp_path: Path
) -> None:
    found = two.run(saved_before_a_meeting, config={"strategy": strategy}, folder=str(tmp_path))
    for first, again in found:
        assert first == again
    same([first for first, _ in found])


def test_a_parameter_that_lies_elsewhere_now_is_refused(two: Group) -> None:
    for strategy in ("local_sgd", "gossip", "sgp"):
        said = two.refused(moved, "StateError", config={"strategy": strategy})
        assert "'first' was thawed, moved or replaced" in same(said)


def test_buffers_keep_what_they_learn_while_a_fragment_is_on_its_way(two: Group) -> None:
    strategy = {"name": "diloco", "every": 4, "overlap_steps": 3}
    found = two.run(running_means, config={"strategy": strategy}, steps=8)
    assert found[0][0] != found[1][0]
    same([after for _, after in found])
    np.testing.assert_allclose(found[0][1], np.mean([own for own, _ in found], axis=0), rtol=0.5)


def test_what_ranks_tell_in_meetings_is_never_compressed(two: Group) -> None:
    config = settings("int8", strategy={"name": "local_sgd", "every": 1}, dense_below={"elems": 0})
    to = {"compressor": "onebit", "dense_below": {"elems": 0}}
    found = two.run(switched, config=config, to=to)
    assert same(found) == ["int8", "none", "onebit"]


@pytest.mark.parametrize("name", ["local_sgd", "gossip", "hogwild", "async", "ad_psgd"])
def test_sparse_gradients_are_each_rank_s_own(name: str, two: Group) -> None:
    for first, last in two.run(embedded, config={"strategy": name}, steps=100):
        assert last < 0.2 * first
