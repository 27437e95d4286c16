"""How the same few steps are trained by each framework, on a rank: the way that its users write it.

Each trainer takes a `Run`, and returns what its parameters are at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _rank_models import batch, build
from _training import digest
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import compressa

MAX_NORM = 0.05


@dataclass(frozen=True)
class Run:
    """What is trained.

    Attributes:
        config: None for the framework without compressa.
        first: The first step; what came before is loaded.
        last: One past the last step, after which a checkpoint is saved if there is a folder.
        folder: Of checkpoints, which all ranks share.
        accumulate: Backward passes in a step.
        clip: Whether gradients are clipped.
        bf16: Whether the forward pass is in bfloat16, by the framework's own setting.
    """

    config: Any
    first: int = 0
    last: int = 3
    folder: str | None = None
    accumulate: int = 1
    clip: bool = False
    bf16: bool = False


@dataclass(frozen=True)
class End:
    """What a run has come to.

    Attributes:
        parameters: Digest.
        losses: One for each backward pass.
        steps: That the handle has counted, loaded ones included.
        ratio: Of the handle.
    """

    parameters: str
    losses: list[float]
    steps: int
    ratio: float


def end_of(net: nn.Module, losses: list[float], handle: Any) -> End:
    """Say what a run has come to, and close its handle."""
    if handle is None:
        return End(digest(net), losses, 0, 1.0)
    end = End(digest(net), losses, handle.next_step, handle.stats().ratio)
    handle.close()
    return end


@dataclass
class Loop:
    """What a training loop of one's own needs of a framework.

    Attributes:
        model: Called in the forward pass.
        optimizer: As the framework has made it.
        handle: Returns it; None without compressa.
        no_sync: For all but the last backward pass of a step.
        autocast: Around the forward pass.
        backward: Of a loss.
        clip: Of all gradients.
        save: Into a folder: parameters, optimizer and residuals.
        load: From a folder.
        whole: Returns the model that was trained, where its parameters are in shards.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    handle: Callable[[], Any]
    no_sync: Callable[[], AbstractContextManager[Any]]
    autocast: Callable[[], AbstractContextManager[Any]]
    backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward
    clip: Callable[[], Any] | None = None
    save: Callable[[str], Any] | None = None
    load: Callable[[str], Any] | None = None
    whole: Callable[[], nn.Module] | None = None


def run_loop(run: Run, net: nn.Module, loop: Loop) -> End:
    """Train as a script of one's own does."""
    losses = []
    if run.first:
        (loop.load or (lambda folder: _load(folder, net, loop)))(str(run.folder))
    for step in range(run.first, run.last):
        loop.optimizer.zero_grad()
        for micro in range(run.accumulate):
            last = micro == run.accumulate - 1
            x, labels = batch(dist.get_rank(), step * run.accumulate + micro, torch.float32)
            with nullcontext() if last else loop.no_sync():
                with loop.autocast():
                    loss = functional.cross_entropy(loop.model(x).float(), labels)
                loop.backward(loss / run.accumulate)
            losses.append(loss.item())
        if run.clip:
            if loop.clip is not None:
                loop.clip()
            else:
                nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        loop.optimizer.step()
    if run.folder is not None and not run.first:
        (loop.save or (lambda folder: _save(folder, net, loop)))(run.folder)
    if hasattr(loop.model, "flush"):
        loop.model.flush()
    return end_of(loop.whole() if loop.whole else net, losses, loop.handle())


def _save(folder: str, net: nn.Module, loop: Loop) -> None:
    loop.handle().save(f"{folder}/compressa")
    if dist.get_rank() == 0:
        torch.save([net.state_dict(), loop.optimizer.state_dict()], f"{folder}/model.pt")
    dist.barrier()


def _load(folder: str, net: nn.Module, loop: Loop) -> None:
    loop.handle().load(f"{folder}/compressa")
    _load_model(folder, net, loop)


def _load_model(folder: str, net: nn.Module, loop: Loop) -> None:
    weights, momenta = torch.load(f"{folder}/model.pt")
    net.load_state_dict(weights)
    loop.optimizer.load_state_dict(momenta)


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make a model and its optimizer."""
    net = build("mlp", dist.get_rank())
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def autocast(run: Run) -> Callable[[], AbstractContextManager[Any]]:
    """Return what torch's own users write around the forward pass."""
    return lambda: torch.autocast("cpu", torch.bfloat16, enabled=run.bf16)


def by_ddp(run: Run, compiled: bool = False) -> End:
    """DistributedDataParallel, and `torch.compile` of it."""
    net, optimizer = made()
    wrapped = DistributedDataParallel(net)
    model: Any = torch.compile(wrapped, backend="eager") if compiled else wrapped
    handle = None
    if run.config is not None:
        handle = compressa.register_comm_hook(model, run.config)
    loop = Loop(model, optimizer, lambda: handle, wrapped.no_sync, autocast(run))
    return run_loop(run, net, loop)


def by_compiled_ddp(run: Run) -> End:
    """DistributedDataParallel, compiled."""
    torch._dynamo.reset()
    return by_ddp(run, compiled=True)


def by_overlapped(run: Run) -> End:
    """OverlappedDataParallel; dense by DistributedDataParallel."""
    if run.config is None:
        return by_ddp(run)
    net, optimizer = made()
    model = compressa.OverlappedDataParallel(net, optimizer, run.config)
    loop = Loop(model, optimizer, lambda: model.handle, model.no_sync, autocast(run))
    return run_loop(run, net, loop)


def by_pair(run: Run) -> End:
    """DDP's own `register_comm_hook`; the state loads residuals when the first bucket comes."""
    net, optimizer = made()
    model = DistributedDataParallel(net)
    state: Any = None
    if run.config is not None:
        state, hook = compressa.comm_hook(run.config)
        model.register_comm_hook(state, hook)

    def load(folder: str) -> None:
        state.load(f"{folder}/compressa")
        _load_model(folder, net, loop)

    handle = (lambda: state.handle) if state is not None else lambda: None
    loop = Loop(model, optimizer, handle, model.no_sync, autocast(run), load=load)
    return run_loop(run, net, loop)


def by_accelerate(run: Run) -> End:
    """Accelerate, with its own accumulation, clipping, precision and checkpoints."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from compressa.integrations.accelerate import register

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    net, optimizer = made()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if run.bf16 else "no")
    model, optimizer = accelerator.prepare(net, optimizer)
    handle = None
    if run.config is not None:
        handle = register(accelerator, model, run.config)
    loop = Loop(
        model,
        optimizer,
        lambda: handle,
        lambda: accelerator.no_sync(model),
        nullcontext,  # which `prepare` has put into the model
        accelerator.backward,
        lambda: accelerator.clip_grad_norm_(model.parameters(), MAX_NORM),
        accelerator.save_state,
        accelerator.load_state,
    )
    return run_loop(run, net, loop)


def by_fabric(run: Run) -> End:
    """Lightning's Fabric."""
    from lightning.fabric import Fabric

    net, optimizer = made()
    precision: Any = "bf16-mixed" if run.bf16 else "32-true"
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", precision=precision)
    fabric.launch()
    model, optimizer = fabric.setup(net, optimizer)
    handle = None
    if run.config is not None:
        handle = compressa.register_comm_hook(model, run.config)

    def save(folder: str) -> None:
        fabric.save(f"{folder}/model.ckpt", {"model": model, "optimizer": optimizer})
        handle.save(f"{folder}/compressa")

    def load(folder: str) -> None:
        fabric.load(f"{folder}/model.ckpt", {"model": model, "optimizer": optimizer})
        handle.load(f"{folder}/compressa")

    loop = Loop(
        model,
        optimizer,
        lambda: handle,
        lambda: fabric.no_backward_sync(model),
        nullcontext,  # which `setup` has put into the model
        fabric.backward,
        lambda: fabric.clip_gradients(model, optimizer, max_norm=MAX_NORM, norm_type=2.0),
        save,
        load,
    )
    return run_loop(run, net, loop)


def as_launched() -> None:
    """Set what launchers set, for frameworks that ask."""
    rank, size = dist.get_rank(), dist.get_world_size()
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    addressed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "ACCELERATE_USE_CPU": "true"}
    os.environ.update({name: str(value) for name, value in (told | addressed).items()})


def checkpoint_of(run: Run, name: str) -> str | None:
    """Return what a run goes on from."""
    return str(Path(str(run.folder)) / name) if run.first else None
