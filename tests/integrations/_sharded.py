"""What ranks do with a model of FSDP2."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._composable import replicate, replicate_with_fsdp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)

import compressa
from compressa.collectives import Exchange, Operation
from compressa.integrations.fsdp import FSDPHandle
from compressa.transports.tcp import TcpTransport

_meshes: dict[bool, DeviceMesh] = {}
DTYPES = {str(x).removeprefix("torch."): x for x in (torch.float16, torch.bfloat16, torch.float32)}


class Block(nn.Module):
    """Rows that no number of ranks divides, and a norm."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding tied to the output, two blocks, and a head of three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(37, 18)
        self.blocks = nn.ModuleList([Block(18, 45), Block(18, 45)])
        self.out = nn.Linear(18, 37, bias=False)
        self.out.weight = self.table.weight
        self.head, self.unused = nn.Linear(18, 3), nn.Linear(18, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(x).logsumexp(-1).mean() + self.head(x).square().mean()


def mesh_of(hybrid: bool) -> DeviceMesh:
    """Return the mesh of all ranks; with replicas in pairs of shards. One is made of each."""
    if hybrid not in _meshes:
        size = dist.get_world_size()
        shape, names = ((2, size // 2), ("replica", "shard")) if hybrid else ((size,), ("shard",))
        _meshes[hybrid] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return _meshes[hybrid]


def net_of(
    hybrid: bool = False,
    reshard: bool = True,
    unused: bool = True,
    one_group: bool = False,
    **policy: str,
) -> nn.Module:
    """Return a sharded net, the same on every rank; its blocks are one group if `one_group`."""
    torch.manual_seed(7)
    net = Net()
    how: dict[str, Any] = {"mesh": mesh_of(hybrid), "reshard_after_forward": reshard}
    if policy:
        dtypes = {name: DTYPES[dtype] for name, dtype in policy.items()}
        how["mp_policy"] = MixedPrecisionPolicy(**dtypes)
    if one_group:
        fully_shard(list(net.blocks), **how)
    else:
        for block in net.blocks:
            fully_shard(block, **how)
    fully_shard(net, **how)
    if unused:
        net.set_reduce_scatter_unused_params(True)
    return net


@contextlib.contextmanager
def applied(config: Any, **how: Any) -> Iterator[tuple[nn.Module, FSDPHandle | None]]:
    """Shard a net and apply a configuration; None leaves FSDP2 as it is."""
    net = net_of(**how)
    _evaluate(net)  # leaves the parameters of the outermost module whole
    handle = None if config is None else compressa.apply_to_fsdp(net, config)
    _reshard(net)
    try:
        yield net, handle
    finally:
        if handle is not None:
            handle.close()


def batch(step: int) -> torch.Tensor:
    """Draw what this rank trains on in a step."""
    made = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randint(0, 37, (8,), generator=made)


def steps_of(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    *,
    parts: int = 1,
    clip: float = 0,
) -> list[float]:
    """Train; with several parts of a batch, only the last one is brought to others."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        for part in range(parts):
            net.set_requires_gradient_sync(part == parts - 1)
            loss = net(batch(parts * step + part)) / parts
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(net: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters, gathered by torch."""
    _reshard(net)
    return {name: p.detach().full_tensor() for name, p in net.named_parameters()}


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    sha = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        sha.update(name.encode() + x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _reshard(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@torch.no_grad()
def _evaluate(net: nn.Module) -> float:
    return float(net(torch.arange(37)))


def train(
    *, config: Any, steps: int = 4, parts: int = 1, clip: float = 0, lr: float = 0.05, **how: Any
) -> dict[str, Any]:
    """Train, and return what became of the parameters."""
    with applied(config, **how) as (net, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        losses = steps_of(net, optimizer, range(steps), parts=parts, clip=clip)
        output = _evaluate(net)
        values = whole(net)
        stats = handle and handle.stats()
    return {
        "losses": losses,
        "output": output,
        "digest": digest(values),
        "values": {name: x.flatten().tolist() for name, x in values.items()},
        "ratio": stats and stats.ratio,
        "sent": stats and [s.sent_bytes for s in (stats.gradients, stats.weights, stats.replicas)],
        "steps": stats and [s.steps for s in (stats.gradients, stats.weights, stats.replicas)],
    }


class Tilted(nn.Module):
    """A loss whose gradients are the factors that it is given."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(*shape)) for shape in shapes])

    def forward(self, factors: Sequence[torch.Tensor]) -> torch.Tensor:
        return sum((w * f).sum() for w, f in zip(self.weights, factors, strict=True))


SHAPES = ((37, 18), (45,), (3, 700), (256, 8))


def factors_of(rank: int, step: int) -> list[torch.Tensor]:
    """Return the gradients of a rank in a step."""
    made = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(shape, generator=made) for shape in SHAPES]


@contextlib.contextmanager
def tilted(config: Any, hybrid: bool = False) -> Iterator[tuple[nn.Module, FSDPHandle]]:
    net = Tilted(SHAPES)
    fully_shard(net, mesh=mesh_of(hybrid))
    with compressa.apply_to_fsdp(net, config) as handle:
        yield net, handle


def reduced(net: nn.Module, step: int) -> list[torch.Tensor]:
    """Return the means that this step's gradients become, as every rank sees them."""
    net.zero_grad()
    net(factors_of(dist.get_rank(), step)).backward()
    return [w.grad.full_tensor() for w in net.weights]


def mean_residual(handle: FSDPHandle, shards: int) -> list[torch.Tensor]:
    """Return the mean of what was not sent: between shards by all, between replicas by each."""
    ranks, shard = dist.get_world_size(), dist.get_rank() % shards
    left = [torch.zeros(shape) for shape in SHAPES]
    for key, vector in handle.state_dict().items():
        if "/residual/" in key:
            number = int(key.rpartition(".")[2])
            whole, shape = left[number].view(-1), SHAPES[number]
            if "/shards/" in key:
                whole += vector / ranks
            else:
                rows = -(-shape[0] // shards)
                start = shard * rows * math.prod(shape[1:])
                whole[start : start + vector.numel()] += vector * shards / ranks
    for part in left:
        dist.all_reduce(part)
    return left


def owed(*, config: Any, steps: int, hybrid: bool = False) -> dict[str, float]:
    """Return how much of the gradients is neither in the means nor in the residuals."""
    ranks = range(dist.get_world_size())
    due = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    got = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    with tilted(config, hybrid) as (net, handle):
        for step in range(steps):
            for total, mean in zip(got, reduced(net, step), strict=True):
                total += mean
            for rank in ranks:
                for total, part in zip(due, factors_of(rank, step), strict=True):
                    total += part.double() / len(ranks)
        left = mean_residual(handle, len(ranks) // 2 if hybrid else len(ranks))
    missing = [float((d - g - e).abs().max()) for d, g, e in zip(due, got, left, strict=True)]
    return {"missing": max(missing), "left": max(float(e.abs().max()) for e in left)}


def resumed(*, config: Any, folder: str, way: str, steps: int, hybrid: bool = False) -> list[str]:
    """Train steps at once, and in halves with a checkpoint between them; return digests of both."""
    digests = []
    with applied(config, hybrid=hybrid) as (net, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        steps_of(net, optimizer, range(steps))
        digests.append(digest(whole(net)))
    with applied(config, hybrid=hybrid) as (net, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        steps_of(net, optimizer, range(steps // 2))
        _save(way, folder, net, optimizer, handle)
    with applied(config, hybrid=hybrid) as (net, handle):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        _load(way, folder, net, optimizer, handle)
        steps_of(net, optimizer, range(steps // 2, steps))
        digests.append(digest(whole(net)))
    return digests


def _save(
    way: str, folder: str, net: nn.Module, optimizer: torch.optim.Optimizer, handle: FSDPHandle
) -> None:
    model, states = get_state_dict(net, optimizer)
    state = {"model": model, "optimizer": states}
    if way == "dcp":
        dcp.save({**state, "residuals": handle}, checkpoint_id=folder)
    else:
        dcp.save(state, checkpoint_id=folder)
        handle.save(f"{folder}/residuals")


def _load(
    way: str, folder: str, net: nn.Module, optimizer: torch.optim.Optimizer, handle: FSDPHandle
) -> None:
    model, states = get_state_dict(net, optimizer)
    state: dict[str, Any] = {"model": model, "optimizer": states}
    if way == "dcp":
        dcp.load({**state, "residuals": handle}, checkpoint_id=folder)
    else:
        dcp.load(state, checkpoint_id=folder)
        handle.load(f"{folder}/residuals")
    set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=states)


def kept(*, config: Any, folder: str, first: bool) -> list[list[float]]:
    """Reduce something and save the residuals, or load them; return their mean over all ranks."""
    with tilted(config) as (net, handle):
        if first:
            for step in range(3):
                reduced(net, step)
            handle.save(folder)
        else:
            handle.load(folder)
        return [part.flatten().tolist() for part in mean_residual(handle, dist.get_world_size())]


def delivered(*, config: Any, folder: str) -> dict[str, float]:
    """Load residuals, and reduce zeros; say what is lost of them, and what is kept of one's own."""
    size, rank = dist.get_world_size(), dist.get_rank()
    with tilted(config) as (net, handle):
        handle.load(folder)
        before = mean_residual(handle, size)
        net([torch.zeros(shape) for shape in SHAPES]).backward()
        means = [w.grad.full_tensor() for w in net.weights]
        after = mean_residual(handle, size)
        missing = [b - m - a for b, m, a in zip(before, means, after, strict=True)]
        own = []
        for key, vector in handle.state_dict().items():
            if "/residual/" in key:
                shape = SHAPES[int(key.rpartition(".")[2])]
                slices = vector.split(-(-shape[0] // size) * math.prod(shape[1:]))
                own += slices[rank : rank + 1]
    return {
        "missing": max(float(x.abs().max()) for x in missing),
        "own": max(float(x.abs().max()) for x in own),
    }


def refused(*, config: Any, kind: str = "sharded") -> None:
    """Apply a configuration to a model that is put wrong."""
    net: nn.Module = Net()
    if kind == "ddp":
        net = nn.parallel.DistributedDataParallel(net)
    elif kind == "fsdp1":
        net = FullyShardedDataParallel(Block(18, 45), device_id=torch.device("cpu"))
    elif kind == "replicated":
        net = replicate(Block(18, 45))
    elif kind == "in part":
        net = nn.Sequential(Block(18, 45), Block(18, 45))
        fully_shard(net[0], mesh=mesh_of(False))
    elif kind == "replicated by FSDP":
        net = replicate_with_fsdp.replicate(Block(18, 45), mesh=mesh_of(False))
    elif kind != "plain":
        policy = {"param_dtype": "float16", "reduce_dtype": "float16"} if kind == "float16" else {}
        net = net_of(kind == "hybrid", **policy)
    if kind == "twice":
        with compressa.apply_to_fsdp(net, config):
            compressa.apply_to_fsdp(net, config)
    compressa.apply_to_fsdp(net, config).close()


def refused_on_one(*, config: Any, rank: int, hybrid: bool) -> None:
    """Apply a configuration that is wrong on one rank."""
    wrong = {"compressor": "powersgd", "fsdp": {"gradients": "both" if hybrid else "shards"}}
    own = {"compressor": "powersg"} if dist.get_rank() == rank else config
    compressa.apply_to_fsdp(net_of(hybrid), own if own else wrong).close()


def unused(*, config: Any) -> None:
    """Train a net of which a parameter gets no gradient, without saying so."""
    with applied(config, unused=False) as (net, _):
        steps_of(net, torch.optim.SGD(net.parameters(), lr=0.1), range(1))


def lost(*, config: Any, rank: int, hybrid: bool = False) -> None:
    """Train until a rank is gone."""
    with applied(config, hybrid=hybrid) as (net, _):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        steps_of(net, optimizer, range(2))
        if dist.get_rank() == rank:
            os._exit(3)
        steps_of(net, optimizer, range(2, 50))


def compiled(*, config: Any, whole_net: bool) -> list[list[float]]:
    """Train a net as it is, and compiled: each block, or all of it; return the losses of both."""
    found = []
    for compile_it in (False, True):
        net = net_of()
        if compile_it and not whole_net:
            for block in net.blocks:
                block.compile(backend="aot_eager")
        model = torch.compile(net, backend="aot_eager") if compile_it and whole_net else net
        with compressa.apply_to_fsdp(model, config):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
            losses = []
            for step in range(3):
                optimizer.zero_grad()
                loss = model(batch(step))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        found.append(losses)
    return found


def partly_reduced(*, config: Any) -> str:
    """Train in HSDP; of three passes, two reduce within a replica, and the third averages."""
    with applied(config, hybrid=True) as (net, _):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(3):
            optimizer.zero_grad()
            for part in range(3):
                net.set_requires_all_reduce(part == 2)
                (net(batch(3 * step + part)) / 3).backward()
            optimizer.step()
        return digest(whole(net))


def partly_frozen(*, config: Any) -> list[float]:
    """Train a net whose table and first block are frozen; return losses."""
    torch.manual_seed(7)
    net = Net()
    net.table.requires_grad_(False)
    net.blocks[0].requires_grad_(False)
    for block in net.blocks:
        fully_shard(block, mesh=mesh_of(False))
    fully_shard(net, mesh=mesh_of(False))
    net.set_reduce_scatter_unused_params(True)
    handle = contextlib.nullcontext()
    if config is not None:
        handle = compressa.apply_to_fsdp(net, config)
    with handle:
        trained = [p for p in net.parameters() if p.requires_grad]
        return steps_of(net, torch.optim.SGD(trained, lr=0.05), range(4))


def used_twice(*, config: Any) -> list[list[float]]:
    """Train a net that uses a block twice in a pass; return losses and the mean of all values."""
    net = net_of()
    net.blocks.append(net.blocks[0])
    with contextlib.nullcontext() if config is None else compressa.apply_to_fsdp(net, config):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        losses = steps_of(net, optimizer, range(4))
        return [losses, [float(x.mean()) for x in whole(net).values()]]


def in_launch_order(*, config: Any) -> dict[str, Any]:
    """Train over a transport whose exchanges are launched in one order, as NCCL's are."""
    asked: list[Operation] = []

    def ordered(transport: TcpTransport, operation: Operation) -> bool:
        asked.append(operation)
        return True

    with mock.patch.object(TcpTransport, "ordered", ordered):
        found = train(config=config)
    assert sum(bool(isinstance(each, Exchange) and each.incoming) for each in asked) > 50
    return found
