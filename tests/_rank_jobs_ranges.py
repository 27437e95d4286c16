"""Jobs with numbers at the ends of their ranges."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from _rank_jobs import registered


def register_each(*, configs: Sequence[dict[str, Any]]) -> list[str]:
    """Register a model with one configuration after the other; return what failed."""
    failures = []
    for config in configs:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of rules without effect
                with registered("mlp", config):
                    pass
        except Exception as error:
            failures.append(f"{config}: {type(error).__name__}: {error}")
    return failures
