"""bounded, async and central: ranks send updates to servers, which keep the values.

See `compressa.parameter_server.centre` for what servers do, and `stale_copy` for what a rank does
between two exchanges. An update is what steps of the rank's own optimizer did, so any optimizer
serves. What the strategies guarantee:

    bounded  a rank begins step t with all updates of all ranks of steps up to t - s - 1; with s = 0
             all ranks hold the same bits after each step, and resume with the same bits
    async    a rank begins each step with all updates that the servers had when they answered last
    central  bounded with s = 0, and one server
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from compressa.config.strategy_sections import Async, Bounded
from compressa.engine.measuring.stats import Stats
from compressa.engine.session import GIVE_UP_S
from compressa.engine.start import process_groups
from compressa.errors import ConfigError, StateError
from compressa.hooks import broadcast, saving
from compressa.parameter_server import Consistency, Server, Worker
from compressa.parameter_server.job import Job, assign_roles, job_of
from compressa.parameter_server.opening import open_job
from compressa.parameter_server.stale_copy import StaleCopy
from compressa.strategies.base import Strategy, Training
from compressa.strategies.local import average
from compressa.strategies.packing import FlatCopies, Packed, check_alike, pack
from compressa.strategies.refusals import check_host, check_local, check_memory
from compressa.strategies.surviving import Surviving

Open = Callable[[dist.ProcessGroup, bool], Worker | Server]
"""(who takes part, whether the model is to be brought to all) -> what this rank does."""


class Stale(Surviving, Strategy):
    """A rank that trains; see the module.

    Args:
        training: What is trained.
        worker: Of servers that keep the values.
        keys: What they keep.
        consistency: What this rank may rely on.
        again: Opens another worker, for those who are left when a rank is lost; None where servers
            do not train.
    """

    def __init__(
        self,
        training: Training,
        worker: Worker,
        keys: Sequence[Packed],
        consistency: Consistency,
        again: Open | None,
    ) -> None:
        Strategy.__init__(self, training.model, training.optimizer, training.scaler)
        Surviving.__init__(self, training)
        self.worker, self._again, self._config = worker, again, training.config
        self._flat, self._names = FlatCopies(training.model, keys), [k.info.name for k in keys]
        self._flat.keep(worker.state)
        self._consistency, self._united, self._closed = consistency, True, False
        self._copy = self._copied(-1)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; after an error without waiting for the other ranks."""
        if error is None:
            self.close()
        else:
            super().close()
            self._closed = True
            self.worker.end()

    @torch.no_grad()
    def step(self) -> None:
        """Take a step of the optimizer, and wait if this rank is too far ahead of others."""
        self._step_optimizer()
        check_memory(self.model, self._flat.parameters)
        self._united = False
        self._surviving(self._exchange)

    @torch.no_grad()
    def sync(self) -> None:
        """Wait until all ranks have called it, and go on from what servers keep.

        Collective, each after its own last step; see `Strategy.sync`. A lost rank is left out where
        the configuration recovers, else it is the PeerLost that all raise.
        """
        self._surviving(self._meet, again=True)  # others may have taken steps since the last one

    def _exchange(self) -> None:
        rate, landings = self._rate, self._copy.landings
        self._flat.gather()
        self._copy.advance(rate)
        self._copy.catch_up(rate)
        if self._copy.landings > landings:
            self._flat.scatter()

    def _meet(self) -> None:
        self._flat.gather()
        self._copy.meet(self._rate)
        self._flat.scatter()
        self._united = True

    def _go_on_without_the_lost(self) -> None:
        """From the mean of what ranks train; residuals keep their share of it."""
        assert self._again is not None, "all ranks train"
        self.worker.end(GIVE_UP_S)
        group = process_groups.new_group_of(self._config, self._ranks, "strategy.step")
        self._flat.gather()
        kept = dict(zip(self._names, self._flat.shaped, strict=True))
        average(kept, self._config, group)
        self._flat.scatter()
        before, size = self.worker.state, self.worker.size
        worker = self._again(group, False)
        assert isinstance(worker, Worker), "all ranks train"
        self.worker = worker
        worker.session.keep(group)
        saving.hand_over(before, worker.state, worker.size / size)
        self._flat.keep(worker.state)
        clock = str(self._copy.clock).encode()
        step = max(map(int, worker.session.all_gather(clock, "strategy.step, clocks")))
        worker.restart(self._flat.vectors, step)
        self._copy = self._copied(step)
        worker.session.call_on_all("strategy.step, values", str)

    def save(self, path: str | Path) -> None:
        """Write residuals and the clock; see `Strategy.save`."""
        self._check_saving("save")
        self._flat.write_digits()
        saving.save(self.worker, Path(path), self._copy.clock + 1, self.worker.session.link)

    @torch.no_grad()
    def load(self, path: str | Path) -> None:
        """Take back what `save` has written; begin with the model's parameters as they are now."""
        self._check_saving("load")
        self._flat.take()
        check_alike(self.worker.session, self._flat.vectors)
        step = saving.load(self.worker, Path(path))[0] - 1
        self._flat.take_digits()
        self.worker.restart(self._flat.vectors, step)
        self._copy = self._copied(step)
        self.worker.session.call_on_all("strategy.load, values", str)

    def stats(self) -> Stats:
        """Return what was measured on this rank; a step in it is one of the optimizer."""
        return self.worker.stats()

    def close(self) -> None:
        """Send what was not sent, wait until all ranks close, and end all threads."""
        super().close()
        self._surviving(self._say_goodbye, again=True)

    def _say_goodbye(self) -> None:
        failure = self.worker.failure
        if failure is not None and self._recovers:
            raise failure
        if failure is None and not self._closed:
            with torch.no_grad():
                self._flat.gather()
                self._copy.finish(self._rate)
        self._closed = True
        self.worker.close()

    def _copied(self, step: int) -> StaleCopy:
        staleness = self._consistency.staleness
        return StaleCopy(self.worker, self._names, self._flat.shaped, staleness, step)

    def _check_saving(self, call: str) -> None:
        if self._again is None:
            raise StateError(
                f"strategy.{call}: servers that do not train can not take part in it; keep the "
                "model's state alone, which all ranks hold after strategy.sync()"
            )
        if not self._united:
            raise StateError(
                f"strategy.{call}: ranks hold different parameters; call strategy.sync() first, "
                "on all ranks"
            )

    @property
    def _rate(self) -> float:
        if not self._consistency.delay_compensation:
            return 1.0
        _check_plain(self.optimizer)
        return float(self.optimizer.param_groups[0]["lr"])


class Serving(Strategy):
    """A rank that only keeps values."""

    serves = True

    def __init__(self, training: Training, server: Server) -> None:
        super().__init__(training.model, training.optimizer, training.scaler)
        self._server = server

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it."""
        self.close()

    def step(self) -> None:
        """Raise StateError: this rank keeps values only."""
        raise self._refusal("step")

    def sync(self) -> None:
        """Raise StateError: this rank keeps values only."""
        raise self._refusal("sync")

    def save(self, path: str | Path) -> None:
        """Raise StateError: this rank keeps values only."""
        raise self._refusal("save")

    def load(self, path: str | Path) -> None:
        """Raise StateError: this rank keeps values only."""
        raise self._refusal("load")

    def stats(self) -> Stats:
        """Return what was measured on this rank."""
        return self._server.stats()

    def serve(self) -> None:
        """Keep values until all who train have closed; see `Strategy.serve`."""
        self._server.serve()

    def close(self) -> None:
        """End all threads; ranks that train lose their server."""
        super().close()
        self._server.close()

    def _refusal(self, call: str) -> StateError:
        return StateError(
            f"strategy.{call}: this rank keeps values for the others, and trains not "
            "(strategy.serves); call strategy.serve()"
        )


def open_async(training: Training) -> Strategy:
    """Open what the section `Async` says."""
    settings = training.config.strategy
    assert isinstance(settings, Async)
    return _open(training, math.inf, settings.servers, dedicated=settings.dedicated)


def open_bounded(training: Training) -> Strategy:
    """Open what the section `Bounded` says."""
    settings = training.config.strategy
    assert isinstance(settings, Bounded)
    return _open(training, settings.staleness, settings.servers, dedicated=settings.dedicated)


def open_central(training: Training) -> Strategy:
    """Open what the section `Central` says."""
    return _open(training, 0, [0])


def _open(
    training: Training,
    staleness: float,
    servers: int | Sequence[int] | None,
    *,
    dedicated: bool = False,
) -> Strategy:
    settings, model = training.config.strategy, training.model
    asked: dict[str, Any] = {
        name: getattr(settings, name)
        for name in ("backup_workers", "weighting", "delay_compensation")
        if hasattr(settings, name)
    }
    consistency = Consistency(staleness, **asked)
    keys: list[Packed] = []

    def again(group: dist.ProcessGroup, brings: bool) -> Worker | Server:
        count, rule = servers, consistency
        if not brings:  # fewer than were asked for, where fewer are left
            rule = replace(rule, backup_workers=min(rule.backup_workers, group.size() - 1))
            count = min(servers, group.size()) if isinstance(servers, int) else servers

        def plan() -> Job:
            check_local(training)
            _check(training, consistency)
            keys[:] = pack(training.config, model)
            placement = assign_roles(group.size(), count, colocated=not dedicated)
            infos, codings = [key.info for key in keys], [key.coding for key in keys]
            return job_of(training.config, infos, codings, placement, consistency=rule)

        def values() -> Sequence[torch.Tensor]:
            if brings:
                broadcast(model, group=group, config=training.config)
            return FlatCopies(model, keys).vectors

        return open_job(training.caller, training.config, group, plan, values)

    node = again(training.group, True)
    if isinstance(node, Server):
        return Serving(training, node)
    return Stale(training, node, keys, consistency, None if dedicated else again)


def _check(training: Training, consistency: Consistency) -> None:
    check_host(training)
    if consistency.delay_compensation:
        _check_plain(training.optimizer)


def _check_plain(optimizer: torch.optim.Optimizer) -> None:
    groups = optimizer.param_groups
    besides = ("momentum", "weight_decay", "dampening", "nesterov", "maximize")
    plain = isinstance(optimizer, torch.optim.SGD) and not any(
        g[b] for g in groups for b in besides
    )
    if not plain or len({float(group["lr"]) for group in groups}) != 1:
        raise ConfigError(
            "strategy.delay_compensation takes an update for minus the gradient times the learning "
            "rate, which only SGD without momentum or weight decay and with one rate makes; use "
            "that, or leave it out"
        )
