"""`compressa link`: what the user's own network is like, measured by all of its ranks.

Every rank runs the same code. What decides how it goes on (sizes, how often something is timed) is
worked out from the times of the slowest rank, which all of them share, so they stay together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from compressa.collectives.choice import CANDIDATES, formula_s
from compressa.config import Config
from compressa.engine.opening import open_session
from compressa.engine.session import Session
from compressa.engine.start.link_file import Figures, LinkFile
from compressa.errors import ConfigError
from compressa.link.chain import Ask, Timed
from compressa.link.fit import LONGEST_S, MOST_BYTES, fitted
from compressa.link.operations import prepare
from compressa.machine import this_machine

CHECKED_BYTES = (64 << 10, 1 << 20, 4 << 20)
"""Sizes of sums whose predicted times are compared with measured ones; none was fitted to."""

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Check(NamedTuple):
    """One sum, predicted and measured.

    Attributes:
        algorithm: By which it was done.
        size_bytes: Of what.
        measured_s: The median of several times, each of the slowest rank.
        formula_s: What a, b and g say.
        predicted_s: What is chosen by: that, times what other sizes took longer.
    """

    algorithm: str
    size_bytes: int
    measured_s: float
    formula_s: float
    predicted_s: float

    @property
    def formula_error(self) -> float:
        """How far the formula is off, as a share of the measured time."""
        return self.formula_s / self.measured_s - 1

    @property
    def error(self) -> float:
        """How far the prediction is off."""
        return self.predicted_s / self.measured_s - 1


class Run:
    """The ranks of a network while it is measured; see `opened`.

    Args:
        session: Where exchanges and sums run.
        config: What it was opened with.
        budget_s: Seconds for each of the things that are timed.
        progress: Told what is being done.
    """

    def __init__(
        self, session: Session, config: Config, budget_s: float, progress: Callable[[str], None]
    ) -> None:
        self.rank = session.rank
        self._session = session
        self._config = config
        self._budget_s = budget_s
        self._progress = progress

    def fit(self, candidates: Sequence[str] = CANDIDATES) -> LinkFile:
        """Measure everything. Collective; all ranks get the same figures.

        Args:
            candidates: Algorithms that are timed by themselves; others are known by formula only.

        Raises:
            ArithmeticError: A sum is wrong.
            TransportError: A rank is lost, or does not come.
        """
        figures = fitted(self._session.size, self._budget_s, self._measure, candidates)
        machine = this_machine()
        return LinkFile(
            **dict(figures),
            hosts=self._session.hosts,
            transport=self._config.exchange.transport,
            connections=self._config.exchange.connections,
            cpu=machine.cpu,
            cores=machine.cores,
            system=machine.system,
            versions=machine.versions,
            timestamp=machine.timestamp,
        )

    def check(self, figures: Figures) -> Iterator[Check]:
        """Time sums of other sizes, and yield them with what was predicted. Collective.

        Args:
            figures: What predicts, as `fit` has returned it.

        Raises:
            ArithmeticError: A sum is wrong.
            TransportError: A rank is lost, or does not come.
        """
        ranks, link, costs = self._session.size, figures.link, figures.costs
        for size_bytes in CHECKED_BYTES:
            for name in CANDIDATES:
                formula = formula_s(link, name, size_bytes, ranks)
                if formula > LONGEST_S:
                    continue
                times_s = self._measure(Ask(name, size_bytes, self._budget_s)).samples_s
                measured_s = sorted(times_s)[len(times_s) // 2]
                predicted_s = costs.time_s(name, size_bytes, ranks)
                yield Check(name, size_bytes, measured_s, formula, predicted_s)

    def _measure(self, ask: Ask) -> Timed:
        """Measure one thing; of each chain the slowest rank counts."""
        session = self._session
        self._progress(f"{ask.what}, {ask.size_bytes:,} bytes")
        found = prepare(ask.what, ask.size_bytes, session).timed(ask, session)
        return found._replace(samples_s=[session.slowest(seconds) for seconds in found.samples_s])


@contextmanager
def opened(config: Config, budget_s: float, progress: Callable[[str], None]) -> Iterator[Run]:
    """Join the ranks that a launcher has started, or the process group that there is. Collective.

    Args:
        config: Says which transport.
        budget_s: Seconds for each of the things that are timed.
        progress: Told what is being done.

    Raises:
        ConfigError: No launcher has started this process, or only one rank.
        Timeout: Not all ranks come.
    """
    own = not dist.is_initialized()
    if own:
        _check_launched()
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=config.exchange.deadline_s))
    try:
        world = dist.group.WORLD
        assert world is not None
        with open_session(config, world, MOST_BYTES // 4 + 1) as session:
            yield Run(session, config, budget_s, progress)
            session.barrier()
    finally:
        if own:
            dist.destroy_process_group()


def _check_launched() -> None:
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing or os.environ["WORLD_SIZE"] == "1":
        why = f"{missing[0]} is not set" if missing else "there is one rank only"
        raise ConfigError(
            f"compressa link measures between ranks, and {why}; start it on all hosts, such "
            "as by torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint "
            "HOST:29500 -m compressa link --out link.json"
        )
