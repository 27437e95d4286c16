"""A plan in the making: rows of columns instead of names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from compressa.schedulers.columns import Columns, Integers
from compressa.schedulers.plan import Plan


@dataclass(frozen=True, eq=False)
class Draft:
    """What a policy has decided; see `Plan`.

    Attributes:
        policy: Its name.
        rows: All rows of the columns, the most urgent first.
        chunk_bytes, credit_bytes, starts_s, reason: As of `Plan`.
        groups: Rows of the groups.
    """

    policy: str
    rows: Integers
    chunk_bytes: int | None = None
    credit_bytes: int | None = None
    groups: Sequence[Sequence[int]] = ()
    starts_s: tuple[tuple[float, ...], ...] = ()
    reason: str = ""

    @classmethod
    def of(cls, plan: Plan, columns: Columns) -> Draft:
        """Read a plan.

        Raises:
            ValueError: It is not a plan for these transfers.
        """
        row = {name: i for i, name in enumerate(columns.names)}
        if len(plan.order) != len(row) or any(name not in row for name in plan.order):
            raise ValueError("the plan is not for these transfers")
        rows = np.array([row[name] for name in plan.order], dtype=np.int64)
        groups = [[row[name] for name in group] for group in plan.groups]
        return cls(
            plan.policy,
            rows,
            plan.chunk_bytes,
            plan.credit_bytes,
            groups,
            plan.starts_s,
            plan.reason,
        )

    def plan(self, columns: Columns, first_step: int) -> Plan:
        """Write it out."""
        names = columns.names
        return Plan(
            tuple([names[row] for row in self.rows.tolist()]),
            first_step,
            self.chunk_bytes,
            self.credit_bytes,
            tuple(tuple(names[row] for row in group) for group in self.groups),
            self.starts_s,
            self.policy,
            self.reason,
        )
