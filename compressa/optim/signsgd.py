"""signSGD with majority vote, and SIGNUM (Bernstein et al., 2018 and 2019).

    m_i = b m_i + (1 - b) g_i;  x = x - lr sign(sum_i sign(m_i))

Without momentum b = 0, and m_i is the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from compressa.config import Config, Source
from compressa.errors import ConfigError, StateError
from compressa.optim.base import CompressedOptimizer, Parameters
from compressa.optim.configuration import Wanted, compressors_of
from compressa.optim.parts import Part
from compressa.optim.refusals import outside


class SignSGD(CompressedOptimizer):
    """Each rank votes with the signs of its momentum; the majority's is the step.

    One bit an element each way, for any number of ranks; every step has the width lr, so that it
    must decay. A tie is a step, too: see `compressa.aggregators.SignSGD` and its `ties`. Momenta
    are each rank's own, and kept by the engine (`save`).

    Args:
        params: As `CompressedOptimizer` takes them.
        lr: Width of a step; 1e-4 to 1e-3 is usual.
        momentum: b, the share of the momentum that stays in each step; 0 for plain signSGD, 0.9 for
            SIGNUM.
        weight_decay: Decoupled.
        config: As `CompressedOptimizer` takes it; its compressor must be `signsgd`.
        group: Who takes part.
        foreach: As `CompressedOptimizer` takes it.

    Raises:
        CompressaError: As `CompressedOptimizer`.

    Example:
        >>> opt = SignSGD(net.parameters(), lr=3e-4, momentum=0.9)  # doctest: +SKIP
    """

    def __init__(
        self,
        params: Parameters,
        *,
        lr: float = 1e-4,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        config: Source | None = None,
        group: dist.ProcessGroup | None = None,
        foreach: bool = True,
    ) -> None:
        # What is small votes, too: a mean of its gradients would be no sign.
        wanted = Wanted({"compressor": {"name": "signsgd"}}, {"dense_below": {"elems": 0}}, _check)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults, wanted, config=config, group=group, foreach=foreach)
        self._begin_momenta()

    def _fault(self, group: Mapping[str, Any]) -> str:
        return outside(group, "momentum", 0.0, 1.0)

    def _step(self, parts: Sequence[Part]) -> None:
        for name, parameter in self._trained.items():
            if parameter.requires_grad and parameter.grad is None:
                raise StateError(
                    f"{self._caller}.step: the parameter {name!r} has no gradient, and the sign of "
                    "nothing would move it; use it in the loss, or freeze it "
                    "(requires_grad_(False)) on all ranks"
                )
        for part in parts:
            self._remember(part)
        self._average(parts, lambda part: part.grads)
        for part in parts:
            self._shrink(part)
            changes = self._lists("mul_", part.grads, -part.group["lr"])
            self._lists("add_", part.params, changes)


def _check(config: Config) -> None:
    if compressors_of(config) != {"signsgd"} or config.warmup.steps:
        raise ConfigError(
            "compressa.optim.SignSGD: its steps are the majority's signs, which the compressor "
            '"signsgd" alone gives; leave compressor, rules and warmup out of the configuration, '
            'or give compressor = { name = "signsgd", ties = "alternate" }'
        )
