"""The strategy of `compressa.integrations.lightning`, for who imports `pytorch_lightning`."""

from __future__ import annotations

from pytorch_lightning.strategies import DDPStrategy

from compressa.integrations._lightning import Compressed


class CompressaStrategy(Compressed, DDPStrategy):  # type: ignore[misc]
    """As in `compressa.integrations.lightning`."""
