"""Lightning: a strategy in the place of `DDPStrategy`; for Fabric, `compressa.register_comm_hook`.

Lightning's own slot, `DDPStrategy(ddp_comm_state=, ddp_comm_hook=)`, takes the pair of
`compressa.comm_hook`, but is not called on CPUs, and saves no residuals.
"""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy

from compressa.integrations._lightning import Compressed


class CompressaStrategy(Compressed, DDPStrategy):  # type: ignore[misc]
    """Lightning's DDPStrategy with compressed gradients.

    Residuals lie beside each checkpoint, in `NAME.ckpt.compressa`, and follow it.

    Args:
        config: Path of a TOML file, a mapping, or a `Config`.
        options: As `DDPStrategy` takes them.

    Attributes:
        handle: Of the last `fit`; None before the first.

    Example:
        >>> strategy = CompressaStrategy("compressa.toml", static_graph=True)  # doctest: +SKIP
        >>> Trainer(strategy=strategy, devices=2).fit(module)   # doctest: +SKIP
        >>> strategy.handle.stats().ratio                       # doctest: +SKIP
    """
