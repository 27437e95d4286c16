"""Jobs that choose every gradient, and weigh what came out against what went in."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs import registered
from _rank_models import Linear

import compressa

Vectors = list[torch.Tensor]


def gradients(rank: int, step: int) -> Vectors:
    """Return the gradient of each parameter of `Linear`, in float32, of spread magnitude."""
    generator = torch.Generator().manual_seed(17 + 1000 * step + rank)
    return [
        torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator) ** 2
        for shape in Linear.SHAPES
    ]


class Scales:
    """A mass balance, in float64: what went in, what came out, what is kept."""

    def __init__(self) -> None:
        self.given = [torch.zeros(shape, dtype=torch.float64) for shape in Linear.SHAPES]
        self.got = [torch.zeros_like(total) for total in self.given]

    def give(self, vectors: Sequence[torch.Tensor]) -> None:
        for total, vector in zip(self.given, vectors, strict=True):
            total += vector

    def get(self, model: torch.nn.Module, scale: float = 1.0) -> None:
        for total, parameter in zip(self.got, model.parameters(), strict=True):
            assert parameter.grad is not None
            total += parameter.grad.double() / scale

    def errors(self, handle: compressa.Handle) -> list[float]:
        """Return sum out + mean residual - mean gradient, relative, for each parameter."""
        size = dist.get_world_size()
        result = []
        kept = residuals(handle)
        for i, (given, got) in enumerate(zip(self.given, self.got, strict=True)):
            residual = kept.get(f"weights.{i}", torch.zeros(given.numel()))
            balance = (residual.double().view_as(given) - given) / size
            dist.all_reduce(balance)
            total = given.clone()
            dist.all_reduce(total)
            result.append(float((balance + got).norm() / (total / size).norm()))
        return result


def residuals(handle: compressa.Handle) -> dict[str, torch.Tensor]:
    """Return this rank's residuals by parameter name."""
    parts = {
        key.split("/", 2)[1:][0] + "/" + key.split("/", 2)[-1]: v
        for key, v in handle.state_dict().items()
    }
    return {k.removeprefix("residual/"): v for k, v in parts.items() if k.startswith("residual/")}


def balance(
    *,
    config: Any,
    steps: int = 5,
    ddp: Mapping[str, Any] | None = None,
    mutation: str | None = None,
    late_s: float = 0.0,
    save: str | None = None,
    load: str | None = None,
    first: int = 0,
) -> dict[str, Any]:
    """Run steps with chosen gradients; return the balance.

    With `save` and `load`, what was given and got travels beside the checkpoint, and the
    balance is over all steps from the first.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    time.sleep(late_s)
    net, scales = Linear(), Scales()
    with registered(net, config, ddp=ddp, mutation=mutation) as (wrapped, handle):
        if load is not None:
            handle.load(f"{load}/compressa")
            before, got, old_size = torch.load(f"{load}/balance.pt")
            # Means over another number of ranks count alike.
            scales.give([part / old_size for part in before])
            scales.got = got
        for step in range(first, first + steps):
            vectors = gradients(rank, step)
            net.zero_grad()
            wrapped(*vectors).backward()
            scales.give(vectors)
            scales.get(net)
        errors = scales.errors(handle)
        kept = float(sum(v.abs().sum() for v in residuals(handle).values()))
        if save is not None:
            handle.save(f"{save}/compressa")
            for given in scales.given:
                dist.all_reduce(given)
            if rank == 0:
                torch.save([scales.given, scales.got, size], f"{save}/balance.pt")
        return {
            "errors": errors,
            "kept": kept,
            "got": [float(v.norm()) for v in scales.got],
            "next_step": handle.next_step,
            "compressors": sorted(handle.stats().compressors),
        }


def balance_with_scaler(
    *,
    config: Any,
    steps: int,
    poison: Mapping[str, Any] | None = None,
    growth: bool = False,
) -> dict[str, Any]:
    """Train with a loss scaler; one rank's gradient of one step may hold a bad value.

    `poison` has "rank", "step", "parameter", "value". The balance counts a skipped step's
    gradients as given, and nothing of its outcome as got.
    """
    rank = dist.get_rank()
    net, scales = Linear(), Scales()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1 if growth else 10_000)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    history = []
    with registered(net, config, scaler=scaler) as (wrapped, handle):
        for step in range(steps):
            vectors = gradients(rank, step)
            bad = poison is not None and poison["step"] == step
            if bad and poison is not None and poison["rank"] == rank:
                vectors[poison["parameter"]].view(-1)[3] = float(poison["value"])
            before = [p.detach().clone() for p in net.parameters()]
            scale = scaler.get_scale()
            optimizer.zero_grad()
            scaler.scale(wrapped(*vectors)).backward()
            scaler.unscale_(optimizer)
            if not bad:
                scales.get(net)
            scaler.step(optimizer)
            scaler.update()
            scales.give([v.nan_to_num(0.0, 0.0, 0.0) for v in vectors])
            moved = any(
                not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)
            )
            history.append({"scale": scale, "after": scaler.get_scale(), "moved": moved})
        errors = scales.errors(handle)
        return {
            "errors": errors,
            "history": history,
            "finite": all(bool(v.isfinite().all()) for v in residuals(handle).values()),
            "parameters_finite": all(bool(p.isfinite().all()) for p in net.parameters()),
        }


def hold_unused(*, config: Any, steps: int = 4) -> dict[str, Any]:
    """Train with branches that are used for one step, and then by nobody or by one rank."""
    from _rank_jobs import _optimizer, digest
    from _rank_models import Branches, loss_of

    rank = dist.get_rank()
    torch.manual_seed(7)
    net = Branches(rank)
    with registered(net, config, ddp={"find_unused_parameters": True}) as (wrapped, handle):
        optimizer = _optimizer(net)
        kept: list[dict[str, float]] = []
        for step in range(steps):
            net.use_never = step == 0
            optimizer.zero_grad(set_to_none=True)
            loss_of(wrapped, rank, step, torch.float32).backward()
            optimizer.step()
            kept.append({name: float(v.double().norm()) for name, v in residuals(handle).items()})
        return {
            "parameters": digest(net),
            "kept": kept,
            "unused_has_no_gradient": net.never.weight.grad is None,
        }
