"""1-bit Adam (Tang et al., ICML 2021): Adam at first, then momenta of one bit under its variance.

    x = x - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^min(t, w))) + eps)

The variance of Adam settles early. Once it is frozen, the rest of Adam is linear in the gradients,
so that error feedback makes up for what a compressed momentum lost.
"""

from __future__ import annotations

import torch.distributed as dist

from compressa.config import Source
from compressa.optim.adam import FrozenVariance
from compressa.optim.base import Parameters
from compressa.optim.parts import Part


class OneBitAdam(FrozenVariance):
    """AdamW for `warmup_steps`, with dense gradients; then with compressed momenta.

    The corrections of Adam's bias stay, that of the variance at its value of the last step of the
    warm-up: the paper has none, and after a short warm-up its steps would be too long. A rank
    sends 4 bytes an element in the warm-up and 1/8 + 4/1024 afterwards, each times 2 (P - 1) / P:
    1 / (w + (1 - w) / 31) of the dense bytes at a share w of warm-up steps.

    Args:
        params: As `CompressedOptimizer` takes them.
        warmup_steps: Of how many steps the variance is; 15 to 25 % of all in the paper, past the
            warm-up of the learning rate.
        lr: Learning rate.
        betas: b1 and b2, decay of momentum and variance.
        eps: Added to the root of the variance.
        weight_decay: Decoupled.
        config: As `CompressedOptimizer` takes it; None for `onebit` by scatter-reduce.
        group: Who takes part.
        foreach: As `CompressedOptimizer` takes it.

    Raises:
        CompressaError: As `CompressedOptimizer`.

    Example:
        >>> opt = OneBitAdam(net.parameters(), warmup_steps=1000)  # doctest: +SKIP
    """

    def __init__(
        self,
        params: Parameters,
        warmup_steps: int,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        config: Source | None = None,
        group: dist.ProcessGroup | None = None,
        foreach: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, defaults, warmup_steps, config=config, group=group, foreach=foreach
        )

    def _update(self, part: Part) -> None:
        self._shrink(part)
        changes = self._lists("mul_", self._directions(part), -part.group["lr"])
        self._lists("add_", part.params, changes)
