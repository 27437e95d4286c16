"""compressa.broadcast on real ranks: the same bits on all, or the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _ranks import Group, same

import compressa
from compressa.errors import ConfigError, StateError

pytestmark = pytest.mark.ranks

BRING = "_rank_jobs_replicas.bring"
WAYS = ["auto", "ring", "k_nomial", "scatter", "multi_source", "multicast"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sources", [[0], [3, 1]])
def test_all_ranks_hold_what_the_sources_hold(way: str, sources: list[int], four: Group) -> None:
    results = four.run(BRING, sources=sources, exchange={"broadcast": way})
    assert results == [True] * 4


@pytest.mark.parametrize("exchange", [{"transport": "gloo-group"}, {"connections": 2}])
def test_any_transport_will_do(exchange: dict[str, Any], two: Group) -> None:
    assert two.run(BRING, sources=[1], exchange=exchange) == [True] * 2


def test_where_all_are_sources_only_their_values_are_compared(two: Group) -> None:
    assert two.run(BRING, sources=[0, 1], exchange={}) == [True] * 2


def test_lost_packets_of_multicast_are_sent_again(four: Group) -> None:
    results = four.run(BRING, sources=[2], exchange={"broadcast": "multicast"}, every=3)
    assert results == [True] * 4


def test_ranks_join_others_that_have_done_more(four: Group) -> None:
    for part, sources in (([1, 2], [0]), ([0, 1, 2, 3], [1, 2])):
        results = four.run(BRING, sources=sources, exchange={}, part=part)
        assert results == [True if rank in part else None for rank in range(4)]


@pytest.mark.parametrize("exchange", [{"transport": "tcp"}, {"transport": "nccl"}], ids=str)
@pytest.mark.parametrize("seed", [None, 1])
def test_tensors_on_gpus_are_brought(
    exchange: dict[str, Any], seed: int | None, two: Group
) -> None:
    job = "_rank_jobs_replicas.bring_to_gpu"
    assert two.run(job, sources=[0], exchange=exchange, seed=seed) == [True] * 2


def test_a_module_is_wrapped_without_another_synchronisation(two: Group) -> None:
    same(two.run("_rank_jobs_replicas.bring_module", sources=[1]))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "tensors.b.shape"),
        ("dtype", "tensors.b.dtype"),
        ("name", "tensors.b"),
        ("order", "tensors.a.place"),
        ("sources", "sources"),
        ("configuration", "configuration.exchange.broadcast"),
        ("broken configuration", "carrier pigeon"),
        ("no tensor", "'b' is of type list"),
        ("sparse", "'b' has the layout torch.sparse_coo"),
        ("expanded", "'b' is expanded"),
        ("lazy", "'b' has no shape yet"),
        ("sources that are not there", "from 0 to 1"),
    ],
)
def test_ranks_that_do_not_agree_are_told_how_they_differ(what: str, says: str, two: Group) -> None:
    for outcome in two.errors("_rank_jobs_replicas.bring_odd", what=what):
        assert outcome.error is not None
        assert outcome.error["type"] == "ConfigError", outcome.explain()
        assert says in outcome.error["message"]


@pytest.mark.parametrize("sources", [[0, 2], [3, 1, 0]])
def test_sources_that_hold_different_values_are_named(sources: list[int], four: Group) -> None:
    job = "_rank_jobs_replicas.bring_from_unlike"
    for outcome in four.errors(job, sources=sources, exchange={"broadcast": "multi_source"}):
        assert outcome.error is not None
        assert outcome.error["type"] == "StateError", outcome.explain()
        said = f"rank {sources[-1]} and rank {sources[0]} are sources and hold different values of"
        assert outcome.error["message"].startswith(said + " large")


def test_what_arrives_otherwise_than_it_was_sent_is_found(two: Group) -> None:
    for outcome in two.errors("_rank_jobs_replicas.spoil", culprit=1):
        assert outcome.error is not None
        assert outcome.error["type"] == "PayloadError", outcome.explain()
        assert outcome.error["message"].startswith("what rank 1 received of ")


def test_multicast_that_does_not_get_through_is_an_error_that_names_the_fix(four: Group) -> None:
    outcomes = four.errors("_rank_jobs_replicas.bring_to_deaf", deaf=2)
    for outcome in outcomes:
        assert outcome.error is not None
        assert "TransportError" in outcome.error["bases"], outcome.explain()
        assert "rank 2 heard nothing of 3 bursts" in outcome.error["message"]
        assert "GLOO_SOCKET_IFNAME" in outcome.error["message"]
        assert outcome.seconds < 10.0


def test_who_does_not_come_is_named_and_nobody_else(fresh: Callable[[int], Group]) -> None:
    group = fresh(3)
    outcomes = group.outcomes("_rank_jobs_replicas.bring_while_some_are_away", away=[1])
    assert outcomes[1].ok
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is not None
        assert outcome.error["ranks"] == [1], outcome.explain()
        assert "waited in compressa.broadcast for" in outcome.error["message"]


def test_who_does_not_come_to_a_call_of_a_session_is_named_on_all_ranks(
    fresh: Callable[[int], Group],
) -> None:
    job = "_rank_jobs_replicas.meet_while_one_is_away"
    for outcome in fresh(3).errors(job, away=2, seconds=4.5):
        assert outcome.error is not None
        assert outcome.error["ranks"] == [2], outcome.explain()


def test_a_program_may_take_longer_than_each_of_its_exchanges(two: Group) -> None:
    assert min(two.run("_rank_jobs_replicas.take_longer_than_the_deadline")) > 11


def test_sources_may_come_from_an_array(two: Group) -> None:
    assert two.run("_rank_jobs_replicas.bring_from_an_array_of_sources") == [True] * 2


def test_a_world_of_one_has_nothing_to_bring(fresh: Any) -> None:
    assert fresh(1).run(BRING, sources=[0], exchange={}) == [True]


def test_without_a_process_group_there_is_an_error() -> None:
    assert not dist.is_initialized()
    with pytest.raises(StateError, match="init_process_group"):
        compressa.broadcast([torch.zeros(3)])


def test_multicast_is_refused_where_messages_have_an_order() -> None:
    with pytest.raises(ConfigError, match=r"exchange\.broadcast"):
        compressa.load_config({"exchange": {"broadcast": "multicast", "transport": "nccl"}})
