"""compressa.open_engine: any named tensors, with all that gradients have."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _ranks import Group, same, settings
from _training import lasting_threads

import compressa

pytestmark = pytest.mark.ranks


SHAPES = {"wide": (40, 30), "long": (3000,), "one": ()}


def momenta(rank: int, step: int) -> dict[str, torch.Tensor]:
    """What a rank submits in a step."""
    made = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(shape, generator=made) for name, shape in SHAPES.items()}


def like() -> dict[str, torch.Tensor]:
    return {name: torch.empty(shape) for name, shape in SHAPES.items()}


class Averaging:
    """Averages steps, tensor by tensor; keeps a digest of all means."""

    def __init__(self, engine: compressa.Handle) -> None:
        self.engine = engine
        self.sha = hashlib.sha256()

    def step(self) -> dict[str, torch.Tensor]:
        given = momenta(dist.get_rank(), self.engine.next_step)
        self.engine.wait([self.engine.submit({name: x}) for name, x in given.items()])
        for mean in given.values():
            self.sha.update(mean.numpy().tobytes())
        return given


def average_exactly(*, config: Any, steps: int) -> dict[str, Any]:
    """Average without compression; return how far a mean is off, and what was counted."""
    errors = []
    with compressa.open_engine(config, like()) as engine:
        averaging = Averaging(engine)
        for step in range(steps):
            assert engine.next_step == step
            means = averaging.step()
            given = [momenta(rank, step) for rank in range(dist.get_world_size())]
            for name, mean in means.items():
                due = torch.stack([each[name] for each in given]).mean(0)
                errors.append(float((mean - due).abs().max()))
        stats = engine.stats()
    left = lasting_threads()
    return {"error": max(errors), "steps": stats.steps, "sent": stats.sent_bytes, "left": left}


def average_and_resume(*, config: Any, folder: str) -> list[str]:
    """Average six steps at once, and three and three with a checkpoint between them."""
    with compressa.open_engine(config, like()) as engine:
        whole = Averaging(engine)
        for _ in range(6):
            whole.step()
    parts = Averaging(engine)
    for part in range(2):
        with compressa.open_engine(config, like()) as parts.engine:
            if part:
                parts.engine.load(Path(folder))
            for _ in range(3):
                parts.step()
            parts.engine.save(Path(folder))
    return [whole.sha.hexdigest(), parts.sha.hexdigest()]


def go_on_without(*, config: Any, culprit: int) -> dict[str, Any]:
    """Average; one rank is killed in the middle of a step, and the others go on without it."""
    with compressa.open_engine(config, like()) as engine:
        averaging = Averaging(engine)
        lost = []
        while engine.next_step < 6:
            if engine.next_step == 3 and dist.get_rank() == culprit:
                engine.submit({"one": torch.ones(())})
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                averaging.step()
            except compressa.PeerLost as error:
                lost.append(error.rank)
                assert engine.reform([r for r in range(3) if r != culprit]) is None
        return {
            "lost": lost,
            "size": engine.group.size(),
            "digest": averaging.sha.hexdigest(),
            "owed": any(bool(x.any()) for k, x in engine.state_dict().items() if "/res" in k),
        }


def open_unlike(*, what: str) -> None:
    """Open engines that differ between the ranks, or can not be."""
    tensors: dict[str, Any] = like()
    config: Any = {"compressor": "int8", "exchange": {"deadline_s": 10.0}}
    odd = dist.get_rank() == 1
    if what == "shape" and odd:
        tensors["long"] = torch.empty(3001)
    elif what == "name" and odd:
        tensors["other"] = tensors.pop("long")
    elif what == "configuration" and odd:
        config["compressor"] = "int4"
    elif what == "sparse":
        tensors["long"] = torch.empty(3000).to_sparse()
    elif what == "integers":
        tensors["long"] = torch.empty(3000, dtype=torch.int32)
    compressa.open_engine(config, tensors)


def leave_by_an_error(*, config: Any) -> dict[str, Any]:
    """Fail between two steps; return what is left, and what the engine says of it."""
    with (
        contextlib.suppress(ZeroDivisionError),
        compressa.open_engine(config, like()) as engine,
    ):
        Averaging(engine).step()
        raise ZeroDivisionError
    try:
        engine.submit(like())
    except compressa.StateError as error:
        return {"left": lasting_threads(), "says": str(error)}
    return {}


@pytest.mark.parametrize("size", [1, 3])
def test_tensors_become_the_mean_over_all_ranks(size: int, fresh: Callable[[int], Group]) -> None:
    for result in fresh(size).run(average_exactly, config=settings("none"), steps=3):
        assert result["error"] < 1e-6
        assert result["steps"] == 3
        assert (result["sent"] > 0) == (size > 1)
        assert result["left"] == []


@pytest.mark.parametrize("compressor", ["int8", "powersgd"])
def test_a_resumed_run_repeats_its_bits_on_all_ranks(
    compressor: str, two: Group, tmp_path: Path
) -> None:
    results = two.run(average_and_resume, config=settings(compressor), folder=str(tmp_path))
    whole, parts = same(results)
    assert whole == parts


def test_survivors_go_on_with_the_same_engine(fresh: Callable[[int], Group]) -> None:
    times = {"heartbeat_s": 0.3, "silence_s": 3.0, "deadline_s": 10.0}
    config = settings("topk", exchange=times, engine={"recover": True})
    group = fresh(3)
    started = group.start(go_on_without, config=config, culprit=1)
    outcomes = group.collect(started, 60.0)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, outcome.explain()
        assert outcome.value["lost"] == [1]
        assert outcome.value["size"] == 2
        assert outcome.value["owed"]
    same([outcomes[rank].value["digest"] for rank in (0, 2)])


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "parameters.long.shape"),
        ("name", "parameters.long"),
        ("configuration", "configuration.compressor"),
        ("sparse", "'long' has the layout torch.sparse_coo"),
        ("integers", "made of torch.int32 values"),
    ],
)
def test_what_ranks_can_not_average_is_refused_on_all(what: str, says: str, two: Group) -> None:
    for message in two.refused(open_unlike, "ConfigError", what=what):
        assert says in message


def test_an_error_of_the_caller_closes_the_engine(two: Group) -> None:
    for result in two.run(leave_by_an_error, config=settings("int8")):
        assert result["left"] == []
        assert "closed" in result["says"]


def test_without_a_process_group_there_is_an_error() -> None:
    assert not dist.is_initialized()
    with pytest.raises(compressa.StateError, match=r"open_engine .*init_process_group"):
        compressa.open_engine({}, {"x": torch.zeros(3)})
