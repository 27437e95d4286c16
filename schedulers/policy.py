"""Policy: one row of the table of policies, what each is told, and what each answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from compressa.schedulers.columns import Columns, Integers
from compressa.schedulers.link import Link, not_negative, positive
from compressa.schedulers.plan import Plan, Transfer


@dataclass(frozen=True)
class Conditions:
    """What a policy is told besides the transfers.

    Attributes:
        link: The measured link. None before it is measured: nothing can be predicted then, and
            plans say nothing of chunks and windows but what is fixed here.
        compute_s: From the start of backward to the end of the next forward, if that never waits:
            B + F. Less than the last need counts as that.
        chunk_bytes: Size of chunks, fixed by the user; None: by the model.
        credit_bytes: Size of the window, fixed by the user; None: by the model.

    Raises:
        ValueError: `compute_s` is not finite and at least 0, or a size not more than 0.
    """

    link: Link | None = None
    compute_s: float = 0.0
    chunk_bytes: int | None = None
    credit_bytes: int | None = None

    def __post_init__(self) -> None:
        not_negative("compute_s", self.compute_s)
        positive("chunk_bytes", self.chunk_bytes)
        positive("credit_bytes", self.credit_bytes)


UNKNOWN = Conditions()
"""Before anything has been measured."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A plan in the making, as a policy decides it: rows of columns instead of names.

    Attributes:
        policy: Its name.
        rows: All rows of the columns, the most urgent first.
        chunk_bytes, credit_bytes, reason: As of `Plan`.
        groups: Rows of the groups.
    """

    policy: str
    rows: Integers
    chunk_bytes: int | None = None
    credit_bytes: int | None = None
    groups: Sequence[Sequence[int]] = ()
    reason: str = ""

    @classmethod
    def of(cls, plan: Plan, columns: Columns) -> Draft:
        """Read a plan.

        Args:
            plan: Names transfers by (unit, stage).
            columns: All transfers of its step.

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
            plan.reason,
        )

    def plan(self, columns: Columns, first_step: int) -> Plan:
        """Write it out.

        Args:
            columns: What its rows are of.
            first_step: First step that follows the plan.
        """
        names = columns.names
        return Plan(
            tuple([names[row] for row in self.rows.tolist()]),
            first_step,
            self.chunk_bytes,
            self.credit_bytes,
            tuple(tuple(names[row] for row in group) for group in self.groups),
            self.policy,
            self.reason,
        )


@dataclass(frozen=True)
class Policy:
    """A way to order the transfers of a step: a pure function, and what is true of it.

    Attributes:
        name: What `schedule.policy` says.
        summary: What it does, in words that follow the name, for people who choose.
        draft: Orders the rows of columns under conditions; its docstring says which of them count.
        overtaking: Whether what is urgent shall go before what was ready earlier. Units are small
            then, chunks and windows go by the link, steps are measured and planned anew, and no sum
            is left to a backend, which nothing can overtake.
        paper: Where it is from.

    Example:
        >>> from compressa.schedulers import POLICIES
        >>> POLICIES["priority"]([Transfer(0, 0, 100), Transfer(1, 0, 100)]).order
        ((1, 0), (0, 0))
    """

    name: str
    summary: str
    draft: Callable[[Columns, Conditions], Draft]
    overtaking: bool = True
    paper: str = ""

    def __call__(
        self,
        transfers: Sequence[Transfer],
        conditions: Conditions = UNKNOWN,
        first_step: int = 0,
    ) -> Plan:
        """Plan a step.

        Args:
            transfers: All transfers of one step, in any order.
            conditions: What is known besides.
            first_step: First step that follows the plan.

        Returns:
            The plan; a pure function of the arguments.

        Raises:
            ValueError: One is there twice, or waits for one that is not there or not earlier, or a
                number is negative or not finite.
        """
        columns = Columns.of(transfers)
        return self.draft(columns, conditions).plan(columns, first_step)
