"""Checkpoints that do not fit are refused on every rank, and change nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from _rank_models import build
from _ranks import Group, same, settings
from _saving import load, save
from _training import _optimizer, digest, registered, run_steps, state_digest, train

import compressa
from compressa.aggregators import narrow

pytestmark = pytest.mark.ranks


def load_then_train(*, config: Any, folder: str) -> dict[str, Any]:
    """Fail to load, and see that state is untouched and training goes on."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        run_steps(wrapped, optimizer, 0, 3)
        before = state_digest(handle)
        message = ""
        try:
            handle.load(folder)
        except compressa.StateError as error:
            message = str(error)
        same = before == state_digest(handle)
        run_steps(wrapped, optimizer, 3, 2)
        return {"message": message, "untouched": same, "parameters": digest(net)}


def save_where_one_cannot(*, config: Any, folder: str) -> None:
    """Rank 1 is given a folder that cannot be made."""
    with registered("mlp", config) as (wrapped, handle):
        run_steps(wrapped, _optimizer(wrapped), 0, 1)
        blocked = Path(folder) / "file"
        if dist.get_rank() == 1:
            blocked.write_text("in the way")
            folder = str(blocked / "inside")
        handle.save(folder)


def distributed_checkpoint(*, config: Any, folder: str, total: int, half: int) -> dict[str, Any]:
    """Train `half` steps, save with torch's distributed checkpoint, load elsewhere, go on."""
    import torch.distributed.checkpoint as dcp  # takes a second, which all who collect would wait

    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        run_steps(wrapped, optimizer, 0, half)
        dcp.save({"compressa": handle}, checkpoint_id=folder)
        model_state = {k: v.clone() for k, v in net.state_dict().items()}
        momenta = optimizer.state_dict()
    other = build("mlp", dist.get_rank())
    with registered(other, config) as (wrapped, handle):
        other.load_state_dict(model_state)
        optimizer = _optimizer(other)
        optimizer.load_state_dict(momenta)
        dcp.load({"compressa": handle}, checkpoint_id=folder)
        first = handle.next_step
        run_steps(wrapped, optimizer, first, total - first)
        return {"first": first, "parameters": digest(other), "state": state_digest(handle)}


def _killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_saving(*, config: Any, folder: str) -> None:
    """Be killed when a file is written, and not yet in its place."""
    with registered("mlp", config) as (wrapped, handle):
        run_steps(wrapped, _optimizer(wrapped), 0, 3)
        with mock.patch("os.fsync", _killed):
            handle.save(folder)


def foreign_state_dict(*, config: Any) -> list[str]:
    """Offer state dicts that do not fit; return what is said of each."""
    said = []
    with registered("mlp", config) as (wrapped, handle):
        run_steps(wrapped, _optimizer(wrapped), 0, 1)
        own = {key: value.clone() for key, value in handle.state_dict().items()}
        rank = dist.get_rank()
        key = f"rank{rank}/residual/2.weight"
        steps = torch.tensor(-1), torch.tensor(2**62 + 1), torch.tensor(1.0)
        for wrong in (
            {k.replace(f"rank{rank}/", f"rank{1 - rank}/"): v for k, v in own.items()},
            {k: v for k, v in own.items() if k != key},
            own | {key: own[key][:-1]},
            *(own | {f"rank{rank}/step": wrong} for wrong in steps),
        ):
            before = state_digest(handle)
            try:
                handle.load_state_dict(wrong)
            except compressa.StateError as error:
                said.append(str(error))
            assert before == state_digest(handle)
        handle.load_state_dict(own)
    return said


def state_dict_of_another_width(*, config: Any, widths: Sequence[Any]) -> list[bool]:
    """Load what residuals of one width gave into those of another; tell whether they are those."""
    prefix, right = f"rank{dist.get_rank()}/residual/", []
    with registered("mlp", _with_width(config, widths[0])) as (wrapped, handle):
        run_steps(wrapped, _optimizer(wrapped), 0, 2)
        state = handle.state_dict()
        given = {key: value.clone() for key, value in state.items()}
    for width in widths[1:]:
        with registered("mlp", _with_width(config, width)) as (wrapped, handle):
            handle.load_state_dict(given)
            for key, taken in handle.state_dict().items():
                if key.startswith(prefix):
                    right.append(torch.equal(taken, narrow.converted(given[key], width)))
            run_steps(wrapped, _optimizer(wrapped), 2, 1)
    assert any(bool(given[key].any()) for key in given if key.startswith(prefix))
    return right


def _with_width(config: Any, width: str) -> Any:
    return {**config, "feedback": {"dtype": width}}


@pytest.fixture
def saved(two: Group, tmp_path: Path) -> Path:
    """A checkpoint of the MLP under topk, by two ranks."""
    folder = tmp_path / "compressa"
    two.run(save, config=settings("topk"), folder=str(folder))
    return folder


def rank_file(folder: Path, rank: int) -> Path:
    """The only file of a rank."""
    (file,) = folder.glob(f"rank-{rank:05d}-*.safetensors")
    return file


def refused(group: Group, folder: Path, **how: Any) -> list[str]:
    how = {"config": settings("topk"), "deadline_s": 20.0, **how}
    return group.refused(load, "StateError", folder=str(folder), **how)


def test_what_is_saved_is_loaded(saved: Path, two: Group) -> None:
    assert sorted(saved.iterdir()) == [
        saved / "manifest.json",
        rank_file(saved, 0),
        rank_file(saved, 1),
    ]
    again = saved.with_name("again")
    digests = two.run(save, config=settings("topk"), folder=str(again))
    loaded = two.run(load, config=settings("topk"), folder=str(saved))
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


@pytest.mark.parametrize("damage", [damage_tensors, truncate, damage_manifest])
def test_damage_is_refused(damage: Callable[[Path], None], saved: Path, two: Group) -> None:
    damage(saved)
    refused(two, saved)


def test_another_model_is_refused(saved: Path, four: Group) -> None:
    for message in refused(four, saved, model="cnn"):
        assert "another model" in message
        assert "shape" in message


@pytest.mark.parametrize("compressor", ["powersgd", "none"])
def test_another_compressor_is_refused(compressor: str, saved: Path, two: Group) -> None:
    """Residuals would be lost without a word, or factors would be missing."""
    for message in refused(two, saved, config=settings(compressor)):
        assert "compressor" in message


def test_a_failed_load_changes_nothing(saved: Path, two: Group) -> None:
    rank_file(saved, 1).unlink()
    results = two.run(load_then_train, config=settings("topk"), folder=str(saved))
    straight = two.run(train, config=settings("topk"), steps=5)
    assert all(result["untouched"] and result["message"] for result in results)
    assert same([r["parameters"] for r in results]) == straight[0]["parameters"]


def test_a_rank_that_cannot_write_stops_all(two: Group, tmp_path: Path) -> None:
    how: dict[str, Any] = {"config": settings("topk"), "folder": str(tmp_path)}
    for message in two.refused(save_where_one_cannot, "StateError", **how):
        assert "rank 1" in message
    assert not list(tmp_path.glob("**/manifest.json"))
    assert not list(tmp_path.glob("**/.*"))


def test_a_new_save_replaces_the_old_one(saved: Path, two: Group) -> None:
    config = settings("topk")
    before = {file.name for file in saved.iterdir()}
    digests = two.run(save, config=config, folder=str(saved), steps=3)
    assert two.run(load, config=config, folder=str(saved)) == digests
    after = {file.name for file in saved.iterdir()}
    assert after & before == {"manifest.json"}
    assert len(after) == 3


def test_a_file_of_another_save_is_refused(saved: Path, two: Group) -> None:
    stale = rank_file(saved, 0).read_bytes()
    two.run(save, config=settings("topk"), folder=str(saved), steps=3)
    rank_file(saved, 0).write_bytes(stale)
    for message in refused(two, saved):
        assert "another save" in message


def test_a_save_that_fails_leaves_the_one_before(saved: Path, two: Group) -> None:
    config = settings("topk")
    loaded = two.run(load, config=config, folder=str(saved))
    two.errors(save_where_one_cannot, config=config, folder=str(saved))
    assert two.run(load, config=config, folder=str(saved)) == loaded


@pytest.mark.parametrize(("compressor", "warmup"), [("topk", {}), ("powersgd", {"steps": 2})])
def test_distributed_checkpoint_round_trip(
    compressor: str, warmup: dict[str, int], two: Group, tmp_path: Path
) -> None:
    config = settings(compressor, warmup=warmup)
    results = two.run(
        distributed_checkpoint,
        config=config,
        folder=str(tmp_path / "dcp"),
        total=5,
        half=3,
    )
    straight = two.run(train, config=config, steps=5)
    assert same([r["first"] for r in results]) == 3
    assert same([r["parameters"] for r in results]) == straight[0]["parameters"]
    assert [r["state"] for r in results] == [r["state"] for r in straight]


def test_a_killed_save_leaves_nothing_once_another_is_done(
    saved: Path, fresh: Callable[[int], Group], two: Group
) -> None:
    group = fresh(2)
    group.start(die_while_saving, config=settings("topk"), folder=str(saved))
    for process in group.processes:
        process.wait(30.0)
    left = list(saved.glob(".*"))
    assert {file.name[:11] for file in left} == {".rank-00000", ".rank-00001"}
    two.run(save, config=settings("topk"), folder=str(saved))
    assert not list(saved.glob(".*"))


def test_a_state_dict_that_does_not_fit_is_refused(two: Group) -> None:
    for said in two.run(foreign_state_dict, config=settings("topk")):
        assert len(said) == 6
        assert all("step" in one for one in said[3:])
        assert "rank-local" in said[0]
        assert "2.weight" in said[1]
        assert "2.weight" in said[2]


@pytest.mark.parametrize("first", ["float32", "int8"])
def test_a_state_dict_goes_on_in_another_dtype(first: str, two: Group) -> None:
    widths = [first, "float32", "int8", "bfloat16"]
    for right in two.run(state_dict_of_another_width, config=settings("topk"), widths=widths):
        assert len(right) >= 3
        assert all(right)
