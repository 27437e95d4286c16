"""Jobs that open an engine for tensors of their own, without a model."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs import lasting_threads

import compressa

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
