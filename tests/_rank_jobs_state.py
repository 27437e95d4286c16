"""Jobs about checkpoints and state dicts."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from _rank_jobs import _optimizer, digest, registered, state_digest
from _rank_models import build, loss_of

import compressa
from compressa.aggregators import narrow


def _steps(wrapped: Any, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    for step in range(first, first + count):
        optimizer.zero_grad()
        loss_of(wrapped, dist.get_rank(), step, torch.float32).backward()
        optimizer.step()


def save(*, config: Any, folder: str, model: str = "mlp", steps: int = 2) -> str:
    """Train and save; return this rank's state digest."""
    net = build(model, dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        _steps(wrapped, _optimizer(net), 0, steps)
        handle.save(folder)
        return state_digest(handle)


def load(*, config: Any, folder: str, model: str = "mlp") -> str:
    """Load without training; return this rank's state digest."""
    with registered(model, config) as (_, handle):
        handle.load(folder)
        return state_digest(handle)


def load_then_train(*, config: Any, folder: str) -> dict[str, Any]:
    """Fail to load, and see that state is untouched and training goes on."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        _steps(wrapped, optimizer, 0, 3)
        before = state_digest(handle)
        message = ""
        try:
            handle.load(folder)
        except compressa.StateError as error:
            message = str(error)
        same = before == state_digest(handle)
        _steps(wrapped, optimizer, 3, 2)
        return {"message": message, "untouched": same, "parameters": digest(net)}


def rewind(*, config: Any, folder: str, total: int, half: int) -> dict[str, Any]:
    """Save in mid-run, train to the end, load and train to the end again."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net, momentum=0.0)
        _steps(wrapped, optimizer, 0, half)
        handle.save(folder)
        weights = {key: value.clone() for key, value in net.state_dict().items()}
        ends = []
        for _ in range(2):
            _steps(wrapped, optimizer, half, total - half)
            ends.append([digest(net), state_digest(handle)])
            net.load_state_dict(weights)
            handle.load(folder)
        return {"first": ends[0], "second": ends[1]}


def save_where_one_cannot(*, config: Any, folder: str) -> None:
    """Rank 1 is given a folder that cannot be made."""
    with registered("mlp", config) as (wrapped, handle):
        _steps(wrapped, _optimizer(wrapped), 0, 1)
        blocked = Path(folder) / "file"
        if dist.get_rank() == 1:
            blocked.write_text("in the way")
            folder = str(blocked / "inside")
        handle.save(folder)


def distributed_checkpoint(*, config: Any, folder: str, total: int, half: int) -> dict[str, Any]:
    """Train `half` steps, save with torch's distributed checkpoint, load elsewhere, go on."""
    net = build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, handle):
        optimizer = _optimizer(net)
        _steps(wrapped, optimizer, 0, half)
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
        _steps(wrapped, optimizer, first, total - first)
        return {"first": first, "parameters": digest(other), "state": state_digest(handle)}


def _killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_saving(*, config: Any, folder: str) -> None:
    """Be killed when a file is written, and not yet in its place."""
    with registered("mlp", config) as (wrapped, handle):
        _steps(wrapped, _optimizer(wrapped), 0, 3)
        with mock.patch("os.fsync", _killed):
            handle.save(folder)


def foreign_state_dict(*, config: Any) -> list[str]:
    """Offer state dicts that do not fit; return what is said of each."""
    said = []
    with registered("mlp", config) as (wrapped, handle):
        _steps(wrapped, _optimizer(wrapped), 0, 1)
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
        _steps(wrapped, _optimizer(wrapped), 0, 2)
        state = handle.state_dict()
        given = {key: value.clone() for key, value in state.items()}
    for width in widths[1:]:
        with registered("mlp", _with_width(config, width)) as (wrapped, handle):
            handle.load_state_dict(given)
            for key, taken in handle.state_dict().items():
                if key.startswith(prefix):
                    right.append(torch.equal(taken, narrow.converted(given[key], width)))
            _steps(wrapped, _optimizer(wrapped), 2, 1)
    assert any(bool(given[key].any()) for key in given if key.startswith(prefix))
    return right


def _with_width(config: Any, width: str) -> Any:
    return {**config, "feedback": {"dtype": width}}
