"""How FSDP2, HSDP and FSDP1 train the steps of a `Run`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from _frameworks import MAX_NORM, End, Loop, Run, run_loop
from _rank_models import build
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)

import compressa


class _Counted:
    """A handle whose steps are those of its state: FSDP2 has passes and gathers, and no step."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    @property
    def next_step(self) -> int:
        state = self._handle.state_dict()
        (step,) = {int(value) for key, value in state.items() if key.endswith("/step")}
        return step


def by_fsdp2(run: Run, shape: tuple[int, ...] = (2,)) -> End:
    """`fully_shard`, and residuals in torch's distributed checkpoint."""
    names = ("replica", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if run.bf16 else None)
    net: Any = build("mlp", 0)  # FSDP2 does not bring rank 0's values to all
    fully_shard(net, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    handle = None if run.config is None else compressa.apply_to_fsdp(net, run.config)

    @contextlib.contextmanager
    def no_sync() -> Iterator[None]:
        net.set_requires_gradient_sync(False)
        yield
        net.set_requires_gradient_sync(True)

    def parts() -> dict[str, Any]:
        weights, states = get_state_dict(net, optimizer)
        return {"model": weights, "optim": states, "unsent": handle}

    def load(folder: str) -> None:
        found = parts()
        dcp.load(found, checkpoint_id=folder)
        states = {"model_state_dict": found["model"], "optim_state_dict": found["optim"]}
        set_state_dict(net, optimizer, **states)

    loop = Loop(
        net, optimizer, lambda: handle and _Counted(handle), no_sync, contextlib.nullcontext
    )
    loop.save, loop.load = (lambda folder: dcp.save(parts(), checkpoint_id=folder)), load
    loop.whole = lambda: _whole(net)
    return run_loop(run, net, loop)


def by_hsdp(run: Run) -> End:
    """Two replicas, each of which one rank has."""
    return by_fsdp2(run, (2, 1))


def by_fsdp1(run: Run) -> End:
    """`FullyShardedDataParallel`; the state loads residuals when the first gradient comes."""
    precision = MixedPrecision(param_dtype=torch.bfloat16 if run.bf16 else None)
    model = FullyShardedDataParallel(
        build("mlp", 0),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        mixed_precision=precision,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state: Any = None
    if run.config is not None:
        state, hook = compressa.comm_hook(run.config)
        model.register_comm_hook(state, hook)

    def parts() -> dict[str, Any]:
        weights, states = get_state_dict(model, optimizer)
        return {"model": weights, "optim": states}

    def save(folder: str) -> None:
        dcp.save(parts(), checkpoint_id=folder)
        state.handle.save(f"{folder}/compressa")

    def load(folder: str) -> None:
        found = parts()
        dcp.load(found, checkpoint_id=folder)
        states = {"model_state_dict": found["model"], "optim_state_dict": found["optim"]}
        set_state_dict(model, optimizer, **states)
        state.load(f"{folder}/compressa")

    def whole() -> nn.Module:
        gathered = build("mlp", 0)
        with FullyShardedDataParallel.summon_full_params(model), torch.no_grad():
            for mine, theirs in zip(gathered.parameters(), model.parameters(), strict=True):
                mine.copy_(theirs)
        return gathered

    handle = (lambda: _Counted(state.handle)) if state is not None else lambda: None
    loop = Loop(model, optimizer, handle, model.no_sync, contextlib.nullcontext)
    loop.save, loop.load, loop.whole = save, load, whole
    loop.clip = lambda: model.clip_grad_norm_(MAX_NORM)
    return run_loop(run, model, loop)


def _whole(net: nn.Module) -> nn.Module:
    """Return a model of the ranks' shards put together."""
    whole = build("mlp", 0)
    with torch.no_grad():
        for mine, shard in zip(whole.parameters(), net.parameters(), strict=True):
            mine.copy_(shard.full_tensor())
    dist.barrier()
    return whole
