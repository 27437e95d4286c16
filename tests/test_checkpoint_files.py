"""Checkpoints that do not fit are refused on every rank, and change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _ranks import Group, Pools, same, settings

pytestmark = pytest.mark.ranks


@pytest.fixture
def saved(two: Group, tmp_path: Path) -> Path:
    """A checkpoint of the MLP under topk, by two ranks."""
    folder = tmp_path / "compressa"
    two.run("_rank_jobs_state.save", config=settings("topk"), folder=str(folder))
    return folder


def rank_file(folder: Path, rank: int) -> Path:
    """The only file of a rank."""
    (file,) = folder.glob(f"rank-{rank:05d}-*.safetensors")
    return file


def refused(group: Group, folder: Path, **arguments: Any) -> list[str]:
    arguments.setdefault("config", settings("topk"))
    outcomes = group.errors(
        "_rank_jobs_state.load", folder=str(folder), deadline_s=20.0, **arguments
    )
    assert same([o.error and o.error["type"] for o in outcomes]) == "StateError"
    return [o.error["message"] for o in outcomes if o.error]


def test_what_is_saved_is_loaded(saved: Path, two: Group) -> None:
    assert sorted(saved.iterdir()) == [
        saved / "manifest.json",
        rank_file(saved, 0),
        rank_file(saved, 1),
    ]
    again = saved.with_name("again")
    digests = two.run("_rank_jobs_state.save", config=settings("topk"), folder=str(again))
    loaded = two.run("_rank_jobs_state.load", config=settings("topk"), folder=str(saved))
    assert digests == loaded
    assert digests[0] != digests[1]


def test_a_missing_folder_is_refused(two: Group, tmp_path: Path) -> None:
    for message in refused(two, tmp_path / "nothing"):
        assert "nothing" in message


def test_a_file_that_only_one_rank_needs_is_missed_by_all(saved: Path, two: Group) -> None:
    file = rank_file(saved, 1)
    file.unlink()
    for message in refused(two, saved):
        assert file.name in message


def damage_tensors(folder: Path) -> None:
    file = rank_file(folder, 1)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def truncate(folder: Path) -> None:
    file = rank_file(folder, 0)
    file.write_bytes(file.read_bytes()[:100])


def damage_manifest(folder: Path) -> None:
    file = folder / "manifest.json"
    file.write_bytes(file.read_bytes()[:-20])


def change_format(folder: Path) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


def change_step(folder: Path) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"step": 3}))


def nest_deeply(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 100_000)


@pytest.mark.parametrize(
    "damage",
    [
        damage_tensors,
        truncate,
        damage_manifest,
        change_format,
        empty_manifest,
        change_step,
        nest_deeply,
    ],
)
def test_damage_is_refused(damage: Callable[[Path], None], saved: Path, two: Group) -> None:
    damage(saved)
    refused(two, saved)


@pytest.mark.parametrize("size", [2, 4])
def test_another_model_is_refused(size: int, saved: Path, pools: Pools) -> None:
    for message in refused(pools.get(size), saved, model="cnn"):
        assert "another model" in message
        assert "shape" in message


@pytest.mark.parametrize("compressor", ["powersgd", "none"])
def test_another_compressor_is_refused(compressor: str, saved: Path, two: Group) -> None:
    """Residuals would be lost without a word, or factors would be missing."""
    for message in refused(two, saved, config=settings(compressor)):
        assert "compressor" in message


def test_a_failed_load_changes_nothing(saved: Path, two: Group) -> None:
    rank_file(saved, 1).unlink()
    results = two.run(
        "_rank_jobs_state.load_then_train", config=settings("topk"), folder=str(saved)
    )
    straight = two.run("_rank_jobs.train", config=settings("topk"), steps=5)
    assert all(result["untouched"] and result["message"] for result in results)
    assert same([r["parameters"] for r in results]) == straight[0]["parameters"]


def test_a_rank_that_cannot_write_stops_all(two: Group, tmp_path: Path) -> None:
    outcomes = two.errors(
        "_rank_jobs_state.save_where_one_cannot", config=settings("topk"), folder=str(tmp_path)
    )
    for outcome in outcomes:
        assert outcome.error is not None
        assert outcome.error["type"] == "StateError"
        assert "rank 1" in outcome.error["message"]
    assert not list(tmp_path.glob("**/manifest.json"))
    assert not list(tmp_path.glob("**/.*"))


def test_a_new_save_replaces_the_old_one(saved: Path, two: Group) -> None:
    config = settings("topk")
    before = {file.name for file in saved.iterdir()}
    digests = two.run("_rank_jobs_state.save", config=config, folder=str(saved), steps=3)
    assert two.run("_rank_jobs_state.load", config=config, folder=str(saved)) == digests
    after = {file.name for file in saved.iterdir()}
    assert after & before == {"manifest.json"}
    assert len(after) == 3


def test_a_file_of_another_save_is_refused(saved: Path, two: Group) -> None:
    stale = rank_file(saved, 0).read_bytes()
    two.run("_rank_jobs_state.save", config=settings("topk"), folder=str(saved), steps=3)
    rank_file(saved, 0).write_bytes(stale)
    for message in refused(two, saved):
        assert "another save" in message


def test_a_save_that_fails_leaves_the_one_before(saved: Path, two: Group) -> None:
    config = settings("topk")
    loaded = two.run("_rank_jobs_state.load", config=config, folder=str(saved))
    two.errors("_rank_jobs_state.save_where_one_cannot", config=config, folder=str(saved))
    assert two.run("_rank_jobs_state.load", config=config, folder=str(saved)) == loaded


@pytest.mark.parametrize("compressor", ["topk", "powersgd"])
@pytest.mark.parametrize("warmup", [{}, {"steps": 2}])
def test_distributed_checkpoint_round_trip(
    compressor: str, warmup: dict[str, int], two: Group, tmp_path: Path
) -> None:
    config = settings(compressor, warmup=warmup)
    results = two.run(
        "_rank_jobs_state.distributed_checkpoint",
        config=config,
        folder=str(tmp_path / "dcp"),
        total=5,
        half=3,
    )
    straight = two.run("_rank_jobs.train", config=config, steps=5)
    assert same([r["first"] for r in results]) == 3
    assert same([r["parameters"] for r in results]) == straight[0]["parameters"]
    assert [r["state"] for r in results] == [r["state"] for r in straight]


def test_a_killed_save_leaves_nothing_once_another_is_done(
    saved: Path, fresh: Callable[[int], Group], two: Group
) -> None:
    group = fresh(2)
    group.start("_rank_jobs_state.die_while_saving", config=settings("topk"), folder=str(saved))
    for process in group.processes:
        process.wait(30.0)
    left = list(saved.glob(".*"))
    assert {file.name[:11] for file in left} == {".rank-00000", ".rank-00001"}
    two.run("_rank_jobs_state.save", config=settings("topk"), folder=str(saved))
    assert not list(saved.glob(".*"))


def test_a_state_dict_that_does_not_fit_is_refused(two: Group) -> None:
    for said in two.run("_rank_jobs_state.foreign_state_dict", config=settings("topk")):
        assert len(said) == 6
        assert all("step" in one for one in said[3:])
        assert "rank-local" in said[0]
        assert "2.weight" in said[1]
        assert "2.weight" in said[2]


@pytest.mark.parametrize("first", ["float32", "int8", "bfloat16"])
def test_a_state_dict_goes_on_in_another_dtype(first: str, two: Group) -> None:
    widths = [first, "float32", "int8", "bfloat16"]
    job = "_rank_jobs_state.state_dict_of_another_width"
    for right in two.run(job, config=settings("topk"), widths=widths):
        assert len(right) >= 3
        assert all(right)
