"""Ranks of the benchmark of schedules: one on each host, which does what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.hosts.ranks import Ranks
from benchmarks.hosts.start import start_each
from compressa.testbed import Testbed

_START_S, _DEADLINE_S = 120.0, 180.0
KEPT_BYTES = 1 << 25
"""Larger pieces of memory go back to the system in each step: the most that malloc can be told."""

# Memory that is given back and asked for again in each step takes the kernel a sixth of it, and
# whether that happens depends on what else is allocated meanwhile: none is given back here.
_KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES)}

TRAINERS, JOB, PUSHING = "trainers", "job", "pushing"
"""Kinds of ranks; `rank` has what each can be asked for."""


class Asked:
    """Ranks that do what they are asked for.

    Attributes:
        folder: Where they may write.
        version: Of torch.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.folder = ranks.folder
        self.version = ranks.version
        self._ranks = ranks

    def __call__(self, what: str, **given: Any) -> dict[str, Any]:
        """Have all ranks do something; see `hear`."""
        self.tell(what, **given)
        return self.hear(what)

    def tell(self, what: str, **given: Any) -> None:
        """Have all ranks begin with something."""
        self._ranks.tell([what, given])

    def hear(self, what: str) -> dict[str, Any]:
        """Wait until all have done it, and return what the slowest tells; see `Ranks.hear`."""
        return self._ranks.hear(what, _DEADLINE_S)


@contextmanager
def started_ranks(bed: Testbed, kind: str) -> Iterator[Asked]:
    """Start a rank on each host, and end them afterwards."""
    env = _KEPT if kind == TRAINERS else {}
    words = ["benchmarks.schedule.rank", kind, _DEADLINE_S]
    with Ranks(len(bed.hosts), partial(start_each, bed, words, env=env), _START_S) as ranks:
        yield Asked(ranks)
