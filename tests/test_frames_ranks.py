"""No wrong byte passes in silence: what a network changes ends the step on every rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _ranks import Group, settings
from _transports import AUTHENTICATED

pytestmark = pytest.mark.ranks

JOB = "_rank_jobs_frames.train_over_a_bad_link"
WAY = "from rank 0 to rank 1 over tcp"


def check_refused(found: list[dict[str, Any]], way: str = WAY) -> None:
    for seen in found:
        assert seen["type"] == "PayloadError", found
        assert way in seen["message"], found
        assert seen["step"] in (1, 2), found  # a rank may be a step behind what comes
        assert seen["seconds"] < 10.0, found


@pytest.mark.parametrize("compressor", ["int8", "topk", "powersgd", "none"])
def test_a_flipped_bit_ends_the_step_on_both_ranks(compressor: str, two: Group) -> None:
    check_refused(two.run(JOB, config=settings(compressor), how="flip"))


def test_ranks_that_are_not_at_the_link_name_it_too(four: Group) -> None:
    check_refused(four.run(JOB, config=settings("int8"), how="flip"))


@pytest.mark.parametrize("connections", [1, 3])
def test_half_a_frame_inverted_ends_the_step_on_both_ranks(connections: int, two: Group) -> None:
    config = settings("none", exchange={"connections": connections})
    check_refused(two.run(JOB, config=config, how="half"))


@pytest.mark.parametrize("transport", ["gloo", "gloo-group"])
def test_data_that_its_check_is_not_of_is_refused_over_gloo_too(transport: str, two: Group) -> None:
    config = settings("int8", exchange={"transport": transport})
    found = two.run("_rank_jobs_frames.train_with_a_bad_sender", config=config)
    check_refused(found, f"from rank 0 to rank 1 over {transport} ")


def test_a_proxy_that_changes_nothing_is_not_noticed(two: Group) -> None:
    found = two.run(JOB, config=settings("int8"), how="flip", at=99)
    assert [seen["type"] for seen in found] == ["", ""]
    assert found[0]["parameters"] == found[1]["parameters"]


@pytest.mark.parametrize("culprits", [[1], [0], [0, 1, 2]])
def test_too_few_files_are_told_to_all_ranks_with_the_fix(
    culprits: list[int], fresh: Callable[[int], Group]
) -> None:
    job = "_rank_jobs_frames.register_with_few_files"
    config = settings("int8", exchange={"deadline_s": 20.0})
    for seen in fresh(3).run(job, config=config, culprits=culprits, spare=16):
        assert seen["type"] == "TransportError", seen
        assert re.search(
            r"this process may open \d+ files, has \d+ and needs 18 more", seen["message"]
        )
        assert "ulimit -n" in seen["message"]
        assert seen["seconds"] < 10.0


def test_as_many_files_as_are_said_to_be_needed_are_enough(fresh: Callable[[int], Group]) -> None:
    job = "_rank_jobs_frames.register_with_few_files"
    found = fresh(3).run(job, config=settings("int8"), culprits=[0, 1, 2], spare=18)
    assert [seen["type"] for seen in found] == [""] * 3


SECRET_JOB = "_rank_jobs_frames.train_with_a_secret"


@pytest.mark.parametrize("compressor", ["int8", "none"])
@pytest.mark.parametrize("transport", AUTHENTICATED)
def test_authenticated_training_has_the_same_bits(
    compressor: str, transport: str, two: Group, tmp_path: Path
) -> None:
    config = settings(compressor, exchange={"transport": transport, "algorithm": "round_robin"})
    plain = two.run("_rank_jobs_frames.train_over_a_bad_link", config=config, how="flip", at=99)
    found = two.run(SECRET_JOB, config=config, folder=str(tmp_path))
    assert found == plain
    assert [seen["type"] for seen in found] == ["", ""]


@pytest.mark.parametrize("how", ["forge", "repeat", "leave out", "flip"])
@pytest.mark.parametrize("connections", [1, 2])
def test_what_is_not_authentic_ends_the_step_on_both_ranks(
    how: str, connections: int, two: Group, tmp_path: Path
) -> None:
    config = settings("int8", exchange={"connections": connections, "deadline_s": 8.0})
    found = two.run(SECRET_JOB, config=config, folder=str(tmp_path), how=how)
    check_refused(found)
    assert "is not authentic" in found[0]["message"]


def test_a_forged_frame_needs_a_secret_to_be_found_out(two: Group) -> None:
    """The proxy's forgery is a good one: without a secret only a comparison of replicas tells."""
    found = two.run(JOB, config=settings("int8", integrity={"every": 0}), how="forge")
    assert [seen["type"] for seen in found] == ["", ""]
    assert found[0]["parameters"] != found[1]["parameters"]


def test_ranks_with_different_secrets_do_not_begin(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    """Neither believes the other's goodbye: their threads end after the silence only."""
    group = fresh(2)
    for seen in group.run(SECRET_JOB, config=settings("int8"), folder=str(tmp_path), own=True):
        assert seen["type"] == "PayloadError", seen
        assert "different secrets" in seen["message"], seen
        assert seen["step"] == -1


def test_a_secret_that_others_may_read_is_refused(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    config = settings("int8", exchange={"deadline_s": 10.0})
    for seen in fresh(2).run(SECRET_JOB, config=config, folder=str(tmp_path), mode=0o640):
        assert seen["type"] == "ConfigError", seen
        assert "may be used by others (mode 640): chmod 600" in seen["message"]
