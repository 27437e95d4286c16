"""What gradients can not be combined with is refused at the earliest place, on every rank."""

from __future__ import annotations

import time
from typing import Any

import pytest
from _ranks import Group, same, settings

pytestmark = pytest.mark.ranks


def refused(group: Group, job: str, **arguments: Any) -> list[tuple[str, str]]:
    """Return the type and the message of each rank's error, which must come soon."""
    started_s = time.monotonic()
    outcomes = group.errors(f"_rank_jobs_refusals.{job}", config=settings("topk"), **arguments)
    assert time.monotonic() - started_s < 20.0
    return [(o.error["type"], o.error["message"]) for o in outcomes if o.error]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_sparse_gradients_are_refused_at_registration(kind: str, overlap: bool, two: Group) -> None:
    for name, message in refused(two, "register_sparse", kind=kind, overlap=overlap):
        assert name == "StateError"
        assert "'words.table.weight'" in message
        assert f"{kind} with sparse=False" in message


def test_sparse_gradients_on_one_rank_are_told_to_all(two: Group) -> None:
    told = refused(two, "register_sparse", kind="Embedding", overlap=True, odd=1)
    assert [name for name, _ in told] == ["ConfigError", "StateError"]
    assert all("'words.table.weight'" in message for _, message in told)


def test_the_reducer_for_compiled_autograd_is_refused_at_registration(two: Group) -> None:
    for name, message in refused(two, "register_for_python_reducer"):
        assert name == "StateError"
        assert '"ddp_optimizer"' in message


@pytest.mark.parametrize("by_class", [False, True])
def test_uneven_inputs_are_refused_before_the_first_forward_pass(
    by_class: bool, two: Group
) -> None:
    arguments = {"config": settings("topk"), "by_class": by_class}
    job = "_rank_jobs_refusals.train_within_join"
    for said in two.run(job, enable=True, **arguments):
        assert len(said) == 1
        assert "join" in said[0]
    assert two.run(job, enable=False, **arguments) == [[], []]


def test_uneven_inputs_are_refused_at_registration(two: Group) -> None:
    for name, message in refused(two, "register_within_join"):
        assert name == "StateError"
        assert "join" in message


def test_a_model_with_a_hook_is_pickled_without_it(two: Group) -> None:
    ends = two.run("_rank_jobs_refusals.pickle_ddp", config=settings("none"))
    # Without compression the hook's bits are DDP's.
    same([end[way] for end in ends for way in ("plain copy", "hooked copy", "itself")])
    for end in ends:
        assert end["steps"] == 2
        assert "already" in end["again"]


def test_an_overlapped_model_says_what_to_pickle(two: Group) -> None:
    for said in two.run("_rank_jobs_refusals.pickle_overlapped", config=settings("none")):
        assert "save its module" in said
