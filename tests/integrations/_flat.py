"""What ranks do with a model of FSDP1."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _sharded import DTYPES, SHAPES, Block, Net, Tilted, batch, digest, factors_of, mean_residual
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel as Flat
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp._common_utils import HandleTrainingState
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import compressa
from compressa.config import parameter_infos
from compressa.integrations.fsdp.flat import sharding_of_flat

CPU = torch.device("cpu")


def flat_net(
    net: nn.Module | None = None,
    *,
    orig: bool = False,
    strategy: str = "FULL_SHARD",
    checkpointed: str = "",
    frozen: bool = False,
    **policy: str,
) -> Any:
    """Return a net in units of FSDP1: its blocks, and the rest."""
    torch.manual_seed(7)
    net = Net() if net is None else net
    if frozen:
        net.table.requires_grad_(False)
        net.blocks[0].requires_grad_(False)
    if checkpointed:
        wrapper = lambda m: checkpoint_wrapper(m, CheckpointImpl[checkpointed])  # noqa: E731
        apply_activation_checkpointing(net, wrapper, lambda m: isinstance(m, Block))
    return Flat(
        net,
        device_id=CPU,
        use_orig_params=orig,
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(**{k: DTYPES[v] for k, v in policy.items()}),
    )


@contextlib.contextmanager
def hooked(config: Any, **how: Any) -> Iterator[tuple[Any, Any]]:
    """Wrap a net, and hand FSDP1 the pair; None leaves FSDP1 as it is."""
    net, state = flat_net(**how), None
    if config is not None:
        state, hook = compressa.comm_hook(config)
        net.register_comm_hook(state, hook)
    try:
        yield net, state
    finally:
        if state is not None:
            with contextlib.suppress(compressa.StateError):  # it was never opened
                state.handle.close()


def steps_of(
    net: Any,
    optimizer: torch.optim.Optimizer,
    steps: range,
    *,
    parts: int = 1,
    clip: float = 0,
    synced: bool = False,
) -> list[float]:
    """Train; with several parts of a batch, each is reduced if `synced`, else all at last."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        for part in range(parts):
            kept = contextlib.nullcontext() if synced or part == parts - 1 else net.no_sync()
            with kept:
                loss = net(batch(parts * step + part)) / parts
                loss.backward()
        if clip:
            net.clip_grad_norm_(clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(net: Any) -> dict[str, torch.Tensor]:
    """Return all parameters, gathered by torch."""
    with Flat.summon_full_params(net):
        return {name: p.detach().clone() for name, p in net.named_parameters()}


def train(
    *,
    config: Any,
    steps: int = 4,
    parts: int = 1,
    clip: float = 0,
    synced: bool = False,
    lr: float = 0.05,
    **how: Any,
) -> dict[str, Any]:
    """Train, and return what became of the parameters."""
    with hooked(config, **how) as (net, state):
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        losses = steps_of(net, optimizer, range(steps), parts=parts, clip=clip, synced=synced)
        values = whole(net)
        stats = state and state.handle.stats()
    return {
        "losses": losses,
        "digest": digest(values),
        "values": {name: x.flatten().tolist() for name, x in values.items()},
        "ratio": stats and stats.ratio,
        "steps": stats and stats.gradients.steps,
        "dense": stats and stats.dense_bytes,
    }


@contextlib.contextmanager
def tilted(config: Any) -> Iterator[tuple[Any, Any]]:
    """Wrap a model of which the gradients are given, with room between its parameters."""
    with hooked(config, net=Tilted(SHAPES), orig=True) as found:
        yield found


def reduced(net: Any, step: int | None) -> list[torch.Tensor]:
    """Return the means that this step's gradients become, put together; None for zeros."""
    net.zero_grad()
    zeros = [torch.zeros(shape) for shape in SHAPES]
    net(zeros if step is None else factors_of(dist.get_rank(), step)).backward()
    own = net._handle.flat_param.grad
    slices = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(slices, own)
    flat, gradients = torch.cat(slices), []
    for (first, last), padding in zip(
        net._handle._get_flat_param_offsets(), net._handle.flat_param._is_padding_mask, strict=True
    ):
        if padding:
            assert not flat[first : last + 1].any()
        else:
            gradients.append(flat[first : last + 1])
    return [x.view(shape) for x, shape in zip(gradients, SHAPES, strict=True)]


def owed(*, config: Any, steps: int) -> dict[str, float]:
    """Return how much of the gradients is neither in the means nor in the residuals."""
    ranks = range(dist.get_world_size())
    due = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    with tilted(config) as (net, state):
        for step in range(steps):
            for total, mean in zip(due, reduced(net, step), strict=True):
                total -= mean
            for rank in ranks:
                for total, part in zip(due, factors_of(rank, step), strict=True):
                    total += part.double() / len(ranks)
        left = mean_residual(state.handle, len(ranks))
    missing = [float((d - e).abs().max()) for d, e in zip(due, left, strict=True)]
    return {"missing": max(missing), "left": max(float(e.abs().max()) for e in left)}


def kept(*, config: Any, folder: str, first: bool) -> dict[str, Any]:
    """Reduce something and save the residuals, or load them and reduce zeros.

    Returns:
        The mean over ranks of residuals, with what has become of them; and what this rank has kept
        of what it owns.
    """
    with tilted(config) as (net, state):
        due = [torch.zeros(shape) for shape in SHAPES]
        if first:
            for step in range(3):
                reduced(net, step)
            state.handle.save(folder)
        else:
            state.load(folder)
            due = reduced(net, None)
        owed = mean_residual(state.handle, dist.get_world_size())
        kept, flat = state.handle.state_dict(), net._handle.flat_param
        own = [
            kept[key][info.intra_param_start_idx : info.intra_param_end_idx + 1].abs().max()
            for key in kept
            if "/residual/" in key
            and (info := flat._shard_param_infos[int(key.rpartition(".")[2])]).in_shard
        ]
    owed = [(d + e).flatten().tolist() for d, e in zip(due, owed, strict=True)]
    return {"owed": owed, "own": float(max(own))}


def resumed(*, config: Any, folder: str, steps: int, orig: bool) -> list[str]:
    """Train steps at once, and in halves with a checkpoint between them; return digests of both."""
    digests, file = [], f"{folder}/rank{dist.get_rank()}.pt"
    for first, last in ((0, steps), (0, steps // 2), (steps // 2, steps)):
        with hooked(config, orig=orig) as (net, state):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
            if first:
                values, states = torch.load(file)
                with torch.no_grad():
                    for p, value in zip(net.parameters(), values, strict=True):
                        p.copy_(value)
                optimizer.load_state_dict(states)
                state.load(f"{folder}/residuals")
            steps_of(net, optimizer, range(first, last))
            if last < steps:
                values = [p.detach() for p in net.parameters()]
                torch.save([values, optimizer.state_dict()], file)
                state.handle.save(f"{folder}/residuals")
            digests.append(digest(whole(net)))
    return digests[::2]


def alike() -> list[Any]:
    """Return what is known of parameters in units of FSDP1, and of the same without."""
    found: list[Any] = [parameter_infos(Net())]
    for orig in (False, True):
        net = flat_net(orig=orig, checkpointed="NO_REENTRANT")
        net(batch(0)).backward()
        found.append(sharding_of_flat("a test", net).reduced)
    return [[(p.index, p.name, p.shape, p.role) for p in infos] for infos in found]


def padded(*, config: Any) -> bool:
    """Have the shard that the hook fills be full of something; say whether anything is left."""
    state, hook = compressa.comm_hook(config)

    def dirty(state: Any, gradient: torch.Tensor, shard: torch.Tensor) -> None:
        hook(state, gradient, shard.fill_(math.nan))

    net = flat_net(Tilted(SHAPES), orig=True)
    net.register_comm_hook(state, dirty)
    reduced(net, 0)
    state.handle.close()
    return bool(net._handle.flat_param.grad.isfinite().all())


def in_a_world_of_one(*, config: Any) -> list[str]:
    """Train as FSDP1 does, and with the pair; return digests."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP is switching to use `NO_SHARD`")
        return [train(config=each)["digest"] for each in (None, config)]


def said(function: Callable[[], Any]) -> str:
    """Return what a call raises, with what kind of error it is."""
    try:
        function()
    except compressa.CompressaError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused(*, config: Any, scaler: Any = None, **how: Any) -> list[str]:
    """Train a step, and another one, with what is put wrong; return what each says."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The `NO_SHARD` sharding strategy is deprecated")
        net = flat_net(**how)
    own = config if isinstance(config, dict) else config[dist.get_rank()]
    net.register_comm_hook(*compressa.comm_hook(own, scaler=scaler))
    return [said(lambda: net(batch(0)).backward()) for _ in range(2)]


def misplaced(*, config: Any) -> list[str]:
    """Give a state to two models, before and after its first gradient, and FSDP1 to a function."""
    state, hook = compressa.comm_hook(config)
    nets = [flat_net() for _ in range(2)]
    nets[0].register_comm_hook(state, hook)
    nets[0](batch(0)).backward()
    nets[1].register_comm_hook(state, hook)
    late = said(lambda: nets[1](batch(0)).backward())
    nets[0](batch(1)).backward()
    state.handle.close()
    early, hook = compressa.comm_hook(config)
    others = [flat_net() for _ in range(2)]
    for net in others:
        net.register_comm_hook(early, hook)
    soon = said(lambda: others[0](batch(0)).backward())
    return [late, soon, said(lambda: compressa.register_comm_hook(nets[0], config))]


def ambiguous(*, config: Any) -> str:
    """Have two units of one size have ended, as if the first had got no gradient."""
    state, hook = compressa.comm_hook(config)
    net = flat_net()
    blocks = [unit._handle for unit in Flat.fsdp_modules(net)[1:]]

    def both(state: Any, gradient: torch.Tensor, shard: torch.Tensor) -> None:
        now = HandleTrainingState.BACKWARD_POST
        with mock.patch.multiple(blocks[0], _training_state=now):
            hook(state, gradient, shard)

    net.register_comm_hook(state, both)
    return said(lambda: net(batch(0)).backward())


def unfrozen(*, config: Any) -> str:
    """Train what was frozen when the first gradient came."""
    with hooked(config, orig=True) as (net, _):
        net.module.head.requires_grad_(False)
        net(batch(0)).backward()
        net.module.head.requires_grad_(True)
        return said(lambda: net(batch(1)).backward())


def unheard(*, config: Any) -> list[str]:
    """Step an optimizer on gradients that are never reduced."""
    with hooked(config) as (net, _), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with net.no_sync():
            net(batch(0)).backward()
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    return [str(w.message) for w in heard if "optimizer" in str(w.message)]


def lost(*, config: Any, rank: int) -> None:
    """Train until a rank is gone, in the middle of a backward pass."""
    with hooked(config, strategy="SHARD_GRAD_OP") as (net, _):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        steps_of(net, optimizer, range(2))
        loss = net(batch(2))
        if dist.get_rank() == rank:
            loss.register_hook(lambda _: os._exit(3))
        loss.backward()
