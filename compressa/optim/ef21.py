"""EF21 as an optimizer (Richtarik et al., NeurIPS 2021), with momentum (Fatkhullin et al., 2023).

    v_i = b v_i + (1 - b) g_i
    h_i = h_i + C(v_i - h_i);  x = x - lr mean_i h_i

C sends how each rank's momentum differs from an estimate h_i that all ranks can follow, so that
what was not sent stays in force instead of coming late. With b > 0 this is EF21-SGDM, which does
not need large batches as EF21 does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from compressa.config import Source
from compressa.optim.base import CompressedOptimizer, Parameters
from compressa.optim.configuration import Wanted
from compressa.optim.parts import Part
from compressa.optim.refusals import outside


class EF21(CompressedOptimizer):
    """SGD along the mean of estimates, whose compressed changes are gathered.

    Estimates and momenta are each rank's own, and kept by the engine (`save`). The first estimate
    is zero: with a rare compressor, the first steps are short.

    Args:
        params: As `CompressedOptimizer` takes them.
        lr: Learning rate.
        momentum: b, the share of the momentum that stays in each step; 0 for plain EF21.
        weight_decay: Decoupled.
        config: As `CompressedOptimizer` takes it; None for `topk` with 1 % of the elements. Any
            contraction or unbiased compressor of one round will do.
        group: Who takes part.
        foreach: As `CompressedOptimizer` takes it.

    Raises:
        CompressaError: As `CompressedOptimizer`.

    Example:
        >>> opt = EF21(net.parameters(), lr=0.1, momentum=0.9)  # doctest: +SKIP
    """

    def __init__(
        self,
        params: Parameters,
        *,
        lr: float = 1e-2,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        config: Source | None = None,
        group: dist.ProcessGroup | None = None,
        foreach: bool = True,
    ) -> None:
        wanted = Wanted({"compressor": {"name": "topk"}}, {"feedback": {"kind": "ef21"}})
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults, wanted, config=config, group=group, foreach=foreach)
        self._begin_momenta()

    def _fault(self, group: Mapping[str, Any]) -> str:
        return outside(group, "momentum", 0.0, 1.0)

    def _step(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._remember(part)
        self._average(parts, lambda part: part.grads)
        for part in parts:
            self._shrink(part)
            changes = self._lists("mul_", part.grads, -part.group["lr"])
            self._lists("add_", part.params, changes)
