"""DeMo: decoupled momentum (Peng et al., 2024): only what moves fast is sent, the rest stays.

    d_i = decay d_i + lr g_i;  send q_i, the largest cosine coefficients of d_i;  d_i = d_i - q_i
    x = x - lr sign(mean_i q_i)

A rank's momentum is exactly the residual of its error feedback, which decays: so the engine keeps
it, and saves it with its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from compressa.config import Source
from compressa.optim.base import CompressedOptimizer, Parameters
from compressa.optim.configuration import Wanted
from compressa.optim.parts import Part


class DeMo(CompressedOptimizer):
    """Momenta of each rank's own, whose fast components are gathered, and the sign of their mean.

    Each rank sends 32 coefficients of each tile of 64 x 64 (or chunk of 64, of a vector) to every
    other rank: see `compressa.codecs.DeMo`. Nothing is kept here but by the engine (`save`). A
    coefficient is averaged over all ranks, which has the sign of the paper's average over the ranks
    that sent it; where nothing was sent, nothing moves.

    Args:
        params: As `CompressedOptimizer` takes them.
        lr: Learning rate, the width of a step.
        decay: Of the momentum, per step.
        weight_decay: Decoupled.
        config: As `CompressedOptimizer` takes it; None for `demo` with 32 coefficients of each
            tile, by all-gather.
        group: Who takes part.
        foreach: As `CompressedOptimizer` takes it.

    Raises:
        CompressaError: As `CompressedOptimizer`.

    Example:
        >>> opt = DeMo(net.parameters(), lr=1e-3)  # doctest: +SKIP
    """

    def __init__(
        self,
        params: Parameters,
        *,
        lr: float = 1e-3,
        decay: float = 0.999,
        weight_decay: float = 0.0,
        config: Source | None = None,
        group: dist.ProcessGroup | None = None,
        foreach: bool = True,
    ) -> None:
        usual = {"compressor": {"name": "demo"}, "exchange": {"kind": "all_gather"}}
        fixed: dict[str, Any] = {
            "feedback": {"kind": "error", "decay": decay},
            "dense_below": {"elems": 0},  # a vector that is sent dense would have no momentum
        }
        defaults = {"lr": lr, "weight_decay": weight_decay}
        wanted = Wanted(usual, fixed)
        super().__init__(params, defaults, wanted, config=config, group=group, foreach=foreach)

    def _step(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._lists("mul_", part.grads, part.group["lr"])
        self._average(parts, lambda part: part.grads)
        for part in parts:
            self._shrink(part)
            changes = self._lists("sign", part.grads)
            self._lists("add_", part.params, self._lists("mul_", changes, -part.group["lr"]))
