"""A policy as somebody else would write one: the shortest transfer first."""

from __future__ import annotations

from typing import Any

import numpy as np
from _training import train
from compressa.schedulers import POLICIES, Conditions, Policy
from compressa.schedulers.columns import Columns
from compressa.schedulers.policy import Draft


def draft_shortest(columns: Columns, conditions: Conditions) -> Draft:
    """Draft a plan by the bytes of whole units, whose stages stay in their order."""
    unit_bytes = np.bincount(columns.first, columns.wire_bytes, len(columns))
    rows = np.lexsort((columns.stage, columns.unit, unit_bytes[columns.first]))
    return Draft("shortest", rows, conditions.chunk_bytes, conditions.credit_bytes)


shortest = Policy("shortest", "what is soon done goes first", draft_shortest)


def train_by_it(**options: Any) -> dict[str, Any]:
    """Add the row, and train; run on every rank."""
    POLICIES[shortest.name] = shortest
    try:
        return train(**options)
    finally:
        del POLICIES[shortest.name]
