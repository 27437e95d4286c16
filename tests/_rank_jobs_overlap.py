"""Jobs that train with OverlappedDataParallel."""

from __future__ import annotations

import contextlib
import gc
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _rank_jobs import digest, lasting_threads, registered, state_digest
from _rank_models import build, loss_of
from test_overlap import OPTIMIZERS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compressa import OverlappedDataParallel
from compressa.overlap.reducer import Reducer

F32 = torch.float32


def optimizer_of(name: str, net: nn.Module) -> torch.optim.Optimizer:
    """Two groups, of which one has a learning rate of its own."""
    parameters = list(net.parameters())
    optimizer = OPTIMIZERS[name](parameters[::2])
    optimizer.add_param_group({"params": parameters[1::2]})
    optimizer.param_groups[1]["lr"] = optimizer.param_groups[1]["lr"] * 0.5
    return optimizer


@contextlib.contextmanager
def overlapped(
    net: nn.Module, optimizer: torch.optim.Optimizer, config: Any, **options: Any
) -> Iterator[OverlappedDataParallel]:
    """Wrap a module; each step is deferred, even if all gradients have come but were not read."""

    def late(reducer: Reducer) -> bool:
        return any(not gradient.over for gradient in reducer.current.values())

    with mock.patch.object(Reducer, "late", property(late)):
        model = OverlappedDataParallel(net, optimizer, config, **options)
        try:
            yield model
        finally:
            model.close()
    assert not lasting_threads()


def _train(
    model: Any,
    optimizer: torch.optim.Optimizer,
    steps: range,
    *,
    accumulate: int = 1,
    max_norm: float | None = None,
    scaler: Any = None,
    spoil: Mapping[int, int] | None = None,
) -> None:
    """The loop of a user's script; `spoil` names the rank whose loss is infinite, by step."""
    rank = dist.get_rank()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in steps:
        optimizer.zero_grad()
        for micro in range(accumulate):
            last = micro == accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = loss_of(model, rank, step * accumulate + micro, F32) / accumulate
                if spoil and spoil.get(step) == rank:
                    loss = loss * float("inf")
                (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()


def _scaler(wanted: bool) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=1024.0) if wanted else None


def train_in_all_ways(
    *,
    config: Any,
    optimizer: str = "sgd",
    model: str = "mlp",
    steps: int = 4,
    scaled: bool = False,
    ddp: bool = True,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Train with DDP, with overlap, and without; return digests of what comes out."""
    options = dict(options or {})
    ends: dict[str, Any] = {}
    if "spoil" in how:
        how["spoil"] = {int(step): rank for step, rank in how["spoil"].items()}
    for way in (["ddp"] if ddp else []) + ["off", "on"]:
        net = build(model, dist.get_rank())
        chosen = optimizer_of(optimizer, net)
        scaler = _scaler(scaled)
        if way == "ddp":
            unused = options.get("find_unused_parameters", False)
            wrapped = DistributedDataParallel(net, find_unused_parameters=unused)
            _train(wrapped, chosen, range(steps), scaler=scaler, **how)
            ends["ddp"] = digest(net)
            continue
        with overlapped(
            net, chosen, config, overlap=way == "on", scaler=scaler, **options
        ) as overlap:
            _train(overlap, chosen, range(steps), scaler=scaler, **how)
            if way == "on":
                ends["late"] = len(overlap._updates.due)
                ends["ended"] = overlap.overlap_ended
            ends[f"{way} state"] = state_digest(overlap.handle)
            ends[way] = digest(net)
            ends["finite"] = all(bool(p.isfinite().all()) for p in net.parameters())
    return ends


def resume(*, config: Any, folder: str, optimizer: str, steps: int) -> list[str]:
    """Train in one go, and with a checkpoint in the middle that another model goes on from."""
    rank, half = dist.get_rank(), steps // 2
    ends = []
    net = build("mlp", rank)
    chosen = OPTIMIZERS[optimizer](net.parameters())
    with overlapped(net, chosen, config) as model:
        _train(model, chosen, range(half))
        model.handle.save(folder)
        states = [net.state_dict(), chosen.state_dict()]
        torch.save(states, f"{folder}/rank{rank}.pt")
        _train(model, chosen, range(half, steps))
        ends += [digest(model), state_digest(model.handle)]
    net = build("mlp", rank)
    chosen = OPTIMIZERS[optimizer](net.parameters())
    with overlapped(net, chosen, config) as model:
        _train(model, chosen, range(1))  # what is loaded replaces what is due
        weights, momenta = torch.load(f"{folder}/rank{rank}.pt")
        net.load_state_dict(weights)
        chosen.load_state_dict(momenta)
        model.handle.load(folder)
        _train(model, chosen, range(half, steps))
        ends += [digest(model), state_digest(model.handle)]
    return ends


def mean_of_gradients(*, config: Any) -> bool:
    """Whether the mean of known gradients is within 2 ulp of the sum of their magnitudes / P."""
    rank, size = dist.get_rank(), dist.get_world_size()
    net = build("linear", rank)

    def factors(of: int) -> list[torch.Tensor]:
        made = torch.Generator().manual_seed(of)
        return [torch.randn(p.shape, generator=made) * 10.0**of for p in net.parameters()]

    seen: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with overlapped(net, optimizer, config) as model:
        model(*factors(rank)).backward()
        optimizer.step()
        seen = [-p.detach().double() for p in model.parameters()]  # they were zeros
    right = True
    for i, mean in enumerate(seen):
        all_factors = torch.stack([factors(of)[i] for of in range(size)]).double()
        scale = (all_factors.abs().sum(0) / size).float()
        ulp = (torch.nextafter(scale, torch.tensor(torch.inf)) - scale).double()
        right &= bool(((mean - all_factors.mean(0)).abs() <= 2 * ulp).all())
    return right


def start_unlike() -> tuple[str, list[float]]:
    """Ranks make different models; all have rank 0's. Return its digest and the first buffers."""
    torch.manual_seed(dist.get_rank())
    net = build("normed_cnn", 0)
    for tensor in [*net.parameters(), *net.buffers()]:
        tensor.data.add_(dist.get_rank())
    with overlapped(net, optimizer_of("sgd", net), {"compressor": "none"}) as model:
        return digest(model), [float(b.sum()) for b in model.buffers()]


def differ(*, rank: int, **options: Any) -> None:
    """One rank is told something else."""
    net = build("mlp", 0)
    optimizer = optimizer_of("sgd", net)
    if options.pop("lbfgs", False) and dist.get_rank() == rank:
        optimizer = torch.optim.LBFGS(net.parameters())
    own = options if dist.get_rank() == rank else {}
    OverlappedDataParallel(net, optimizer, {"compressor": "none"}, **own)


def lose_a_rank(*, config: Any, lost: int) -> dict[str, Any]:
    """A rank ends in the middle of its backward; the others find out where they wait."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    optimizer = optimizer_of("sgd", net)
    told: dict[str, Any] = {}
    with overlapped(net, optimizer, config, broadcast_buffers=False) as model:
        _train(model, optimizer, range(2))
        loss = loss_of(model, rank, 2, F32)
        if rank == lost:
            os._exit(3)
        optimizer.zero_grad()
        with contextlib.suppress(Exception):  # some hear of it already
            loss.backward()
            optimizer.step()
        reads = {
            "forward": lambda: model(torch.zeros(2, 16)),
            "flush": model.flush,
            "state_dict": net.state_dict,
            "parameter": lambda: next(net.parameters()).sum(),
            "save": lambda: model.handle.save("/nowhere"),
        }
        for name, read in reads.items():
            try:
                read()
            except Exception as error:
                told[name] = type(error).__name__
    told["guarded"] = sum(type(p) is not nn.Parameter for p in net.parameters())
    return told


def switch_and_trace(*, config: Any, other: Any, path: str) -> list[str]:
    """Switch while updates are due, and record a trace; return the digest of what comes out."""
    rank = dist.get_rank()
    net = build("mlp", rank)
    optimizer = optimizer_of("sgd", net)
    with overlapped(net, optimizer, config) as model:
        _train(model, optimizer, range(2))
        with model.handle.trace(path):
            first = model.handle.switch(other)
            _train(model, optimizer, range(2, 7))
        assert first == 4
        return [digest(model), state_digest(model.handle)]


def _of_a_step(each: object) -> bool:
    """Whether steps make such; what others left in this process, such as ctypes' types, is not."""
    home = type(each).__module__.partition(".")[0]
    return home in ("compressa", "concurrent", "numpy", "torch") or isinstance(each, memoryview)


def left_to_the_collector(*, config: Any, overlap: bool, trace: str) -> dict[str, int]:
    """Train without the cyclic garbage collector, with a trace; return what it would have freed."""
    net = build("mlp", dist.get_rank())
    optimizer = optimizer_of("sgd", net)
    with contextlib.ExitStack() as stack:
        if overlap:
            model: Any = stack.enter_context(overlapped(net, optimizer, config))
            handle = model.handle
        else:
            model, handle = stack.enter_context(registered(net, config))
        handle.trace(trace)
        _train(model, optimizer, range(6))  # plans are made, and what is set up once is there
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        gc.set_debug(gc.DEBUG_SAVEALL)
        stack.callback(gc.set_debug, 0)
        _train(model, optimizer, range(6, 10))
        gc.collect()
        found = Counter(type(each).__name__ for each in gc.garbage if _of_a_step(each))
        gc.garbage.clear()
    return dict(found)
