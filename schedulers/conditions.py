"""Under which conditions a step is planned."""

from __future__ import annotations

from dataclasses import dataclass

from compressa.schedulers.checks import not_negative, positive
from compressa.schedulers.link import Link


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
        hosts: How many hosts send to one parameter server; 1 if there is none.
        at_once: How many of them may send at a time.
    """

    link: Link | None = None
    compute_s: float = 0.0
    chunk_bytes: int | None = None
    credit_bytes: int | None = None
    hosts: int = 1
    at_once: int = 1

    def __post_init__(self) -> None:
        not_negative("compute_s", self.compute_s)
        for name in ("chunk_bytes", "credit_bytes", "hosts", "at_once"):
            positive(name, getattr(self, name))


UNKNOWN = Conditions()
"""Before anything has been measured."""
