"""Jobs that choose every gradient, and weigh what came out against what went in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
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


def residuals(handle: compressa.Handle) -> dict[str, torch.Tensor]:
    """Return this rank's residuals by parameter name."""
    parts = {
        key.split("/", 2)[1:][0] + "/" + key.split("/", 2)[-1]: v
        for key, v in handle.state_dict().items()
    }
    return {k.removeprefix("residual/"): v for k, v in parts.items() if k.startswith("residual/")}


LR = 0.1


class Balance:
    """What came in and out since some step, in float64, beside what was owed then.

    Args:
        handle: Of the model; nothing is owed if not given.
        group: The ranks; all unless given.
    """

    def __init__(
        self, handle: compressa.Handle | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        self.given = [torch.zeros(shape, dtype=torch.float64) for shape in Linear.SHAPES]
        self.got = [torch.zeros_like(total) for total in self.given]
        owed = {} if handle is None else residuals(handle)
        self._owed, self._group = {name: kept.double() for name, kept in owed.items()}, group

    def give(self, vectors: Sequence[torch.Tensor]) -> None:
        for total, vector in zip(self.given, vectors, strict=True):
            total += vector

    def get(self, model: torch.nn.Module) -> None:
        for total, parameter in zip(self.got, model.parameters(), strict=True):
            total += parameter.grad.double()

    def errors(self, handle: compressa.Handle) -> list[float]:
        """Return sum out + mean residual - mean of what was owed and given, for each parameter.

        Relative to the mean of what was given.
        """
        size, kept, result = dist.get_world_size(self._group), residuals(handle), []
        for i, (given, got) in enumerate(zip(self.given, self.got, strict=True)):
            name, nothing = f"weights.{i}", torch.zeros(given.numel(), dtype=torch.float64)
            more = kept.get(name, nothing).double() - self._owed.get(name, nothing)
            balance, total = (more.view_as(given) - given) / size, given.clone()
            dist.all_reduce(balance, group=self._group)
            dist.all_reduce(total, group=self._group)
            result.append(float((balance + got).norm() / (total / size).norm()))
        return result


def check_state(before: dict[str, torch.Tensor], handle: compressa.Handle, gain: float) -> None:
    """The step left no trace: residuals are what they were, scaled; what all share is the same."""
    after = handle.state_dict()
    prefix = next(iter(after)).split("/")[0]
    for key, vector in before.items():
        name = key.split("/", 1)[1]
        now = after[f"{prefix}/{name}"]
        if name == "step" or name.startswith("powersgd_"):
            assert torch.equal(now, vector), name
        elif name.startswith("ef21/"):
            mean = before[key.replace("ef21/", "ef21_mean/")]
            assert torch.equal(now, mean), name
        elif name.startswith("ef21_mean"):
            assert torch.equal(now, vector), name
        elif vector.dtype is torch.float32:
            assert torch.equal(now, vector * gain), name
