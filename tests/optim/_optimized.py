"""Ranks that train by an optimizer of `compressa.optim`: called on real ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from _optim_oracle import SHAPES, initial, quadratic
from torch import nn

import compressa
from compressa import optim

Make = Callable[..., optim.CompressedOptimizer]


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.from_numpy(x).to(dtype)) for name, x in initial().items()}


def make(
    kind: str, params: Any, hyper: dict[str, Any], config: Any = None
) -> optim.CompressedOptimizer:
    made: optim.CompressedOptimizer = getattr(optim, kind)(params, config=config, **hyper)
    return made


def evaluate(params: dict[str, nn.Parameter], step: int) -> None:
    """Have each parameter's gradient of this rank."""
    for name, parameter in params.items():
        curvature, minimum = (torch.from_numpy(a) for a in quadratic(name, dist.get_rank(), step))
        value = parameter.detach().double()
        parameter.grad = (curvature * (value - minimum)).to(parameter.dtype)


def digest(params: dict[str, nn.Parameter]) -> str:
    bits = (p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in params.values())
    return hashlib.sha256(b"".join(bits)).hexdigest()


def values_of(params: dict[str, nn.Parameter]) -> dict[str, Any]:
    return {name: p.detach().float().tolist() for name, p in params.items()}


def trained(
    *,
    kind: str,
    hyper: dict[str, Any],
    config: Any,
    steps: int,
    rates: Sequence[float] = (),
    groups: Sequence[dict[str, Any]] = (),
    named: bool = True,
    absent: int | None = None,
    every: int = 1,
) -> dict[str, Any]:
    """Return parameters after each step (or every so many), and their digests.

    Args:
        rates: What a scheduler multiplies the learning rate by, step by step.
        groups: Settings of a group for each parameter.
        absent: A rank without gradients of "bias".
    """
    params = parameters()
    given: Any = list(params.items()) if named else list(params.values())
    if groups:
        given = [{"params": [p], **own} for p, own in zip(given, groups, strict=True)]
    history, digests = [], []
    with make(kind, given, hyper, config) as opt:
        factors = list(rates) or [1.0] * steps
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: factors[min(t, steps - 1)])
        for step in range(steps):
            opt.zero_grad()
            evaluate(params, step)
            if dist.get_rank() == absent:
                params["bias"].grad = None
            opt.step()
            schedule.step()
            digests.append(digest(params))
            if step % every == 0:
                history.append(values_of(params))
        stats = opt.stats()
        sent = {"steps": stats.steps, "sent": stats.sent_bytes, "ratio": stats.ratio}
    return {"history": history, "digests": digests, **sent}


def resumed(
    *, kind: str, hyper: dict[str, Any], config: Any, steps: int, folder: str, fresh: bool
) -> list[Any]:
    """Train in one go, and go on from what was saved in the middle; return where both end.

    With `fresh`, what goes on has taken no step before.
    """
    ends = []
    params = parameters()
    with make(kind, params.items(), hyper, config) as opt:
        _go(opt, params, range(steps))
        _sync(opt)
        opt.save(folder)
        if dist.get_rank() == 0:
            torch.save([opt.state_dict(), values_of(params)], f"{folder}/shared.pt")
        _go(opt, params, range(steps, 2 * steps))
        _sync(opt)
        ends.append(digest(params))
    params = parameters()
    with make(kind, params.items(), hyper, config) as opt:
        if not fresh:
            _go(opt, params, range(90, 92))
            _sync(opt)
        state, values = torch.load(f"{folder}/shared.pt")
        opt.load_state_dict(state)
        opt.load(folder)
        with torch.no_grad():
            for name, parameter in params.items():
                parameter.copy_(torch.tensor(values[name]))
        _go(opt, params, range(steps, 2 * steps))
        _sync(opt)
        ends.append(digest(params))
    return ends


def after_loading(*, kind: str, hyper: dict[str, Any], config: Any) -> float:
    """Go on from the state of an optimizer that is past its warm-up, and return the ratio then."""
    params = parameters()
    with make(kind, params.items(), hyper, config) as opt:
        _go(opt, params, range(hyper["warmup_steps"] + 1))
        state = opt.state_dict()
    with make(kind, params.items(), hyper, config) as opt:
        opt.load_state_dict(state)
        _go(opt, params, range(3))
        return opt.stats().ratio


def momenta(*, kind: str, hyper: dict[str, Any], folder: str, saves: bool) -> Any:
    """Save what a few steps left behind, or load it; return this rank's momentum of "weight"."""
    params = parameters()
    with make(kind, params.items(), hyper) as opt:
        _go(opt, params, range(3 if saves else 1))
        if saves:
            opt.save(folder)
        else:
            opt.load(folder)
        prefix = f"rank{dist.get_rank()}/"
        return opt.handle.state_dict()[f"{prefix}optimizer_momentum/weight"].tolist()


def _go(opt: optim.CompressedOptimizer, params: dict[str, nn.Parameter], steps: range) -> None:
    for step in steps:
        evaluate(params, step)
        for group in opt.param_groups:
            group["lr"] = 0.01 / (1 + step)
        opt.step()


def _sync(opt: optim.CompressedOptimizer) -> None:
    if isinstance(opt, optim.ZeroOneAdam):
        opt.sync()


def opened(
    *,
    kind: str = "OneBitAdam",
    hyper: dict[str, Any],
    config: Any = None,
    dtype: str = "float32",
    differs: Any = None,
) -> None:
    """Make one, with something that may not fit; `differs` is rank 1's own hyper-parameters."""
    own = differs if differs is not None and dist.get_rank() == 1 else hyper
    make(kind, parameters(getattr(torch, dtype)).items(), own, config).close()


def misused(*, how: str) -> None:
    """Take a step that can not be."""
    params = parameters()
    params["frozen"] = nn.Parameter(torch.ones(3), requires_grad=False)
    with make("OneBitAdam", list(params.items()), {"warmup_steps": 1}) as opt:
        evaluate({name: params[name] for name in SHAPES}, 0)
        if how == "scaled":
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(()))
            scaler.step(opt)
        elif how == "sparse":
            params["weight"].grad = torch.ones(24, 16).to_sparse()
        elif how == "thawed":
            params["frozen"].grad = torch.ones(3)
        elif how == "late group":
            opt.add_param_group({"params": [("more", nn.Parameter(torch.ones(2)))]})
        opt.step()


def gone_astray(*, kind: str, hyper: dict[str, Any]) -> None:
    """Write to a parameter on one rank, in the middle of training."""
    params = parameters()
    with make(kind, params.items(), hyper, {"integrity": {"every": 1}}) as opt:
        for step in range(6):
            evaluate(params, step)
            if step == 2 and dist.get_rank() == 1:
                params["weight"].data[0, 0] += 1.0
            opt.step()


def saved_apart(*, folder: str) -> None:
    """Save while ranks hold different parameters."""
    params = parameters()
    with make("ZeroOneAdam", params.items(), {"warmup_steps": 1}) as opt:
        _go(opt, params, range(6))
        opt.save(folder)


def lost(*, kind: str, hyper: dict[str, Any], config: Any, step: int) -> list[Any]:
    """Have rank 1 end in a step; return what the others are told."""
    params = parameters()
    with make(kind, params.items(), hyper, config) as opt:
        for number in range(100):
            if number == step and dist.get_rank() == 1:
                os._exit(3)
            evaluate(params, number)
            try:
                opt.step()
            except compressa.PeerLost as error:
                return [error.rank, number]
    return []


def of_another_dtype(*, kind: str, hyper: dict[str, Any], dtype: str, steps: int) -> list[Any]:
    """Train parameters of 16 bits or complex ones; what is kept must be float32, once loaded too.

    Return the digest, how far the parameters moved, and the dtypes of state.
    """
    params = parameters(getattr(torch, dtype))
    before = {name: p.detach().clone() for name, p in params.items()}
    with make(kind, params.items(), hyper) as opt:
        for step in range(steps):
            evaluate(params, step)
            opt.step()
        opt.load_state_dict(opt.state_dict())
        kept = {str(v.dtype) for state in opt.state.values() for v in state.values()}
        evaluate(params, steps)
        opt.step()
    moved = max((p.detach() - before[name]).abs().max().item() for name, p in params.items())
    return [digest(params), moved, sorted(kept)]


def volume(*, kind: str, hyper: dict[str, Any], steps: int, elems: int) -> list[float]:
    """Return bytes handed to the network, and those of the same steps with dense sums."""
    parameter = nn.Parameter(torch.zeros(elems // 256, 256))
    generator = torch.Generator().manual_seed(dist.get_rank())
    with make(kind, [("w", parameter)], hyper) as opt:
        for _ in range(steps):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            opt.step()
        sent = opt.stats().sent_bytes
    ranks = dist.get_world_size()
    return [sent, steps * 4 * elems * 2 * (ranks - 1) / ranks]


def from_rank_0(*, kind: str, hyper: dict[str, Any]) -> Any:
    """Begin with other values on each rank; return what they begin with then."""
    params = parameters()
    with torch.no_grad():
        params["weight"].add_(dist.get_rank())
    make(kind, params.items(), hyper).close()
    return values_of(params)


def evaluated_again(*, hyper: dict[str, Any]) -> float:
    """Give a closure; return what it returned."""
    params = parameters()

    def closure() -> float:
        assert torch.is_grad_enabled()
        evaluate(params, 0)
        return 7.5

    with make("OneBitAdam", params.values(), hyper) as opt:
        return float(opt.step(closure))
