"""Saved profiles: of the slowest rank, read as written, and refused with place and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _overlapping import overlapped
from _rank_models import build
from _ranks import Group, settings
from _training import _backward, registered
from compressa.schedulers import Profile
from simulated import profile
from test_link_file import favouring, write_link

from compressa.engine.measuring.profile_file import ProfileFile, read
from compressa.engine.measuring.profiler import Profiler
from compressa.errors import ConfigError
from compressa.hooks import Handle
from compressa.simulation import Scenario, simulate

LAYERS = [(4000, 0.1, 0.0), (4000, 0.05, 0.02)]


def save(*, config: Any, path: str, steps: int, overlap: bool = False) -> dict[str, Any]:
    """Train, save the profile, and return what this rank's engine knows of it."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    if overlap:
        with overlapped(net, optimizer, config) as model:
            return _train_and_save(model, model.handle, optimizer, path, steps)
    with registered(net, config) as (wrapped, handle):
        return _train_and_save(wrapped, handle, optimizer, path, steps)


def _train_and_save(
    model: Any, handle: Handle, optimizer: torch.optim.Optimizer, path: str, steps: int
) -> dict[str, Any]:
    for step in range(steps):
        optimizer.zero_grad()
        _backward(model, dist.get_rank(), step, 1, torch.float32)
        optimizer.step()
    handle.save_profile(path)
    planning = handle.engine.planning
    return {
        "numbers": planning.profiler.profile().numbers(),
        "units": planning.unit_names,
        "parameters": [p.name for p in handle.engine.parameters],
        "transfers": len(planning.step_plan.plan.order),
    }


@pytest.fixture
def good() -> dict[str, Any]:
    file = profile(LAYERS, backward_s=0.1, forward_s=0.05)
    return json.loads(file.model_dump_json())


def test_a_profile_is_read_as_it_was_written(tmp_path: Path, good: dict[str, Any]) -> None:
    path = tmp_path / "profile.json"
    for link in (None, favouring("ring")):
        path.write_text(json.dumps({**good, "link": link}))
        file = read(path)
        assert (
            json.loads(file.model_dump_json())["link"]
            == json.loads(ProfileFile.model_validate_json(path.read_bytes()).model_dump_json())[
                "link"
            ]
        )
        assert [p.name for p in file.infos] == ["l0", "l1"]
        assert file.parameters == profile(LAYERS, backward_s=0.1, forward_s=0.05).parameters


def _changed(good: dict[str, Any], path: list[Any], value: Any) -> dict[str, Any]:
    whole = json.loads(json.dumps(good))
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (["format"], "compressa.link", "format"),
        (["format_version"], 2, "format_version"),
        (["more"], 1, "more"),
        (["ranks"], 0, "ranks"),
        (["ranks"], "2", "ranks"),
        (["threads"], 1 << 20, "threads"),
        (["backend_sums"], "yes", "backend_sums"),
        (["parameters"], [], "parameters"),
        (["parameters", 0, "shape"], [1 << 40], "parameters.0.shape"),
        (["parameters", 0, "shape"], [1 << 20, 1 << 20], "the whole"),
        (["parameters", 0, "shape"], [-1], "parameters.0.shape"),
        (["parameters", 0, "shape"], [1] * 17, "parameters.0.shape"),
        (["parameters", 0, "dtype"], "int8", "parameters.0.dtype"),
        (["parameters", 0, "role"], "head", "parameters.0.role"),
        (["parameters", 0, "name"], "l1", "the whole"),
        (["parameters", 0, "ready_s"], -1.0, "parameters.0.ready_s"),
        (["units", 0, "name"], "l1", "the whole"),
        (["units", 0, "encode_s"], 1e9, "units.0.encode_s"),
        (["units", 0, "decode_s"], None, "units.0.decode_s"),
        (["forward_s"], "1", "forward_s"),
        (["computing_s"], float("nan"), "computing_s"),
        (["step_s"], float("inf"), "step_s"),
        (["link"], {"format": "compressa.link"}, "link"),
        (["configuration"], [], "configuration"),
    ],
)
def test_a_damaged_profile_is_refused_with_its_place(
    path: list[Any], value: Any, place: str, good: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(_changed(good, path, value)))
    with pytest.raises(ConfigError, match=r"profile\.json: ") as error:
        read(file, "--profile: ")
    assert f"profile.json: {place}" in str(error.value)
    assert "handle.save_profile" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", "null", '{"format": NaN}'])
def test_what_is_no_profile_at_all_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"profile\.json"):
        read(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(tmp_path / "none.json")


def test_a_configuration_in_a_profile_is_checked_as_any_other(
    tmp_path: Path, good: dict[str, Any]
) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(_changed(good, ["configuration", "exchange", "kind"], "magic")))
    with pytest.raises(ConfigError, match="kind"):
        Scenario.of(read(file), bandwidth_bits_per_s=1e9)


# What is measured


def test_a_step_lasts_until_the_next_and_waits_in_between_are_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 10.0
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    profiler = Profiler([frozenset({"b"}), frozenset({"a", "c"})], steps=2)
    for step_s, waited_s in ((9.0, 8.0), (2.0, 0.5), (4.0, 1.0)):
        profiler.begin()
        profiler.arrived(["b"])
        profiler.ready([0])
        now_s += 0.25
        profiler.arrived(["a", "c"])
        profiler.ready([1])
        profiler.waited(waited_s)
        now_s += step_s - 0.25
    assert profiler.steps() == [(2.0, 0.5)]  # the last has not ended yet
    profiler.forward_ended()
    now_s += 0.125
    profiler.begin()
    assert profiler.steps() == [(4.125, 1.0)]  # and the one that begins is in place of another
    assert profiler.loss_s == 0.125
    assert [profiler.came_s(name) for name in "abc"] == [0.25, 0.0, 0.25]


# Real ranks


@pytest.mark.ranks
def test_a_profile_of_real_ranks_is_that_of_the_slowest_and_simulates(
    two: Group, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    link = write_link(tmp_path / "link.json", {**favouring("ring"), "ranks": 2})
    exchange = {"unit_bytes": 256, "unit_payload_bytes": 64, "link": str(link)}
    config = settings("int8", exchange=exchange)
    own = two.run(save, config=config, path=str(path), steps=4)
    file = read(path)
    assert file.ranks == 2
    assert file.step == 3
    assert [row.name for row in file.parameters] == own[0]["parameters"]
    assert [row.name for row in file.units] == own[0]["units"] == own[1]["units"]
    merged = Profile.merged([Profile.of(each["numbers"]) for each in own])
    assert Profile(tuple(row.times for row in file.units), 0.0, file.backward_s) == merged
    assert 0 < file.backward_s <= file.step_s
    assert 0 < file.computing_s <= file.step_s
    assert file.link is not None
    found = simulate(Scenario.of(file))
    assert [unit.name for unit in found.units] == own[0]["units"]
    assert found.step_s >= found.compute_s


@pytest.mark.ranks
def test_with_overlap_a_profile_knows_when_parameters_are_needed(
    two: Group, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    config = settings("none", schedule={"policy": "priority"})
    two.run(save, config=config, path=str(path), steps=5, overlap=True)
    file = read(path)
    needs = [row.need_s for row in file.parameters if row.name.endswith("weight")]
    assert 0 < file.forward_s < file.step_s
    assert needs == sorted(needs)
    assert 0 < needs[-1] <= file.forward_s
    assert Scenario.of(file, bandwidth_bits_per_s=1e8).overlap


@pytest.mark.ranks
def test_nothing_is_written_before_a_step_was_measured_or_where_nothing_can_be(
    two: Group, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    config = settings("none")
    early = two.errors(save, config=config, path=str(path), steps=1)
    assert all("no step has been measured yet" in one.error["message"] for one in early)
    assert not path.exists()
    nowhere = str(tmp_path / "no" / "profile.json")
    late = two.errors(save, config=config, path=nowhere, steps=3)
    assert all("No such file" in one.error["message"] for one in late)
    assert {base for one in late for base in one.error["bases"]} >= {"StateError"}
