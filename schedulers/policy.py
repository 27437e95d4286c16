"""Policy: one row of the table of policies, and how each of them is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compressa.schedulers.columns import Columns
from compressa.schedulers.conditions import UNKNOWN, Conditions
from compressa.schedulers.draft import Draft
from compressa.schedulers.plan import Plan, Transfer


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
