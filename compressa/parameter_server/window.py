"""Window: which steps of one key a worker may push and pull now."""

from __future__ import annotations

from compressa.errors import StateError
from compressa.parameter_server.protocol import LEAD_STEPS, REMEMBERED_STEPS


class Window:
    """What a worker has done with one key; see `protocol` for the rules.

    Args:
        key: The key's name.
        first_step: The first step that is pushed.

    Attributes:
        pushed: The last step that was pushed.
    """

    def __init__(self, key: str, first_step: int) -> None:
        self.pushed = first_step - 1
        self._key = key
        self._pulled = first_step - 1
        self._answered = first_step - 1
        self._asked: set[int] = set()

    def check_push(self, step: int) -> None:
        """Raise StateError unless a step may be pushed now."""
        if step != self.pushed + 1:
            raise StateError(
                f"key {self._key!r}: step {step} is pushed where step {self.pushed + 1} is due; "
                "push every step once, in their order"
            )
        oldest = step - LEAD_STEPS - 1
        if self._answered < oldest or min(self._asked, default=step) <= oldest:
            raise StateError(
                f"key {self._key!r}: step {step} is pushed before the answer to step {oldest} is "
                f"there; a worker may be {LEAD_STEPS} step ahead: pull that step, and wait for it"
            )

    def check_pull(self, step: int) -> None:
        """Raise StateError unless a step may be pulled now."""
        low = max(self._pulled, self.pushed - REMEMBERED_STEPS)
        if not low < step <= self.pushed:
            raise StateError(
                f"key {self._key!r}: step {step} can not be pulled: {self.pushed} was pushed last, "
                f"and {self._pulled} pulled last; pull one of the last {REMEMBERED_STEPS} steps "
                "that were pushed, each once, in their order"
            )

    def push(self, step: int) -> None:
        """Note that a step is pushed."""
        self.pushed = step

    def pull(self, step: int) -> None:
        """Note that a step is pulled."""
        self._pulled = step
        self._asked.add(step)

    def waited(self, step: int) -> None:
        """Note that the answer to a pull is there."""
        self._asked.discard(step)
        self._answered = max(self._answered, step)
