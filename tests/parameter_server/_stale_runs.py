"""Workers of servers that keep values, on a virtual clock: each takes steps at its own pace."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _server_world import ServerWorld

from compressa.parameter_server import Consistency, Handle
from compressa.parameter_server.stale_copy import StaleCopy
from compressa.transports.loopback import Loopback

Step = Callable[[int, StaleCopy], None]
"""(worker, copy): what training does to `copy.own` in a step."""


class Run:
    """Workers that take steps, each as long as it takes it, until all have taken theirs.

    Args:
        world: Its servers keep values.
        train: What a step does.
        steps: How many each worker takes, or all do.
        step_s: (worker) -> how long the next one takes.
    """

    def __init__(
        self,
        world: ServerWorld,
        train: Step,
        steps: int | Sequence[int],
        step_s: Callable[[int], float],
    ) -> None:
        assert world.job.consistency is not None
        self.world, self._train, self._step_s = world, train, step_s
        bound, keys = world.job.consistency.staleness, list(world.job.table.numbers)
        self.copies = [
            StaleCopy(worker, keys, [view.clone() for view in worker._views], bound)
            for worker in world.workers
        ]
        self.left = [steps] * len(world.workers) if isinstance(steps, int) else list(steps)
        self.done_s = [math.inf] * len(world.workers)
        self.widest = 0.0
        self.meetings: list[Handle] = []
        for worker in range(len(self.copies)):
            self._later(worker)
        world.loopback.clock.run()
        world.raise_failure()
        assert len(self.meetings) == len(self.copies)
        assert all(meeting.done for meeting in self.meetings)
        for copy in self.copies:  # all meet with the same bits
            assert torch.equal(torch.cat(copy._way), self.values)

    def _later(self, worker: int) -> None:
        clock = self.world.loopback.clock
        clock.at(clock.now_s + self._step_s(worker), lambda: self._step(worker))

    def _step(self, worker: int) -> None:
        copy = self.copies[worker]
        self._train(worker, copy)
        copy.advance()
        self.left[worker] -= 1
        self._go_on(worker)

    def _go_on(self, worker: int) -> None:
        copy, clock = self.copies[worker], self.world.loopback.clock
        self.widest = max(self.widest, max(c.clock for c in self.copies) - copy.clock)
        if copy.behind:
            if copy.awaited is None:
                copy._depart(1.0)
            self._when_landed(worker, self._go_on)
        elif self.left[worker]:
            self._later(worker)
        else:
            self.done_s[worker] = min(self.done_s[worker], clock.now_s)
            self._end(worker)

    def _end(self, worker: int) -> None:
        """What `StaleCopy.meet` does, but for waiting."""
        copy = self.copies[worker]
        if copy.awaited is None and copy.clock > copy._left:
            copy._depart(1.0)
        if copy.awaited is not None:
            self._when_landed(worker, self._end)
        else:
            self.meetings.append(self.world.workers[worker].meet(copy._way))

    def _when_landed(self, worker: int, then: Callable[[int], None]) -> None:
        copy, clock = self.copies[worker], self.world.loopback.clock
        assert copy.awaited is not None
        left = [len(copy.awaited._futures)]

        def landed() -> None:
            if self.world.sessions[worker].error is None:
                copy.land()
                then(worker)

        def done(_: object) -> None:
            left[0] -= 1
            if not left[0]:
                clock.at(clock.now_s, landed)

        for future in copy.awaited._futures:
            future.add_done_callback(done)

    @property
    def values(self) -> torch.Tensor:
        """What servers keep, of all keys."""
        kept = [kept for server in self.world.servers for kept in server._shards.values()]
        return torch.cat([k.values for k in sorted(kept, key=lambda k: k.shard.number)])


def counting(size: int, consistency: Consistency, **options: Any) -> ServerWorld:
    """Values that count: element i is how many steps of worker i are in them."""
    workers = size if options.get("colocated", True) else size - 1
    settings = options.pop("config", None)
    return ServerWorld(size, {"counts": (workers,)}, settings, consistency=consistency, **options)


def count(worker: int, copy: StaleCopy) -> None:
    copy.own[0][worker] += 1


def delays(seed: int, size: int) -> tuple[Loopback, Callable[[int], float]]:
    rng = random.Random(seed)
    slow = rng.choice([1.0, 3.0, 10.0])

    def delay(sender: int, receiver: int, time_s: float) -> float:
        return rng.expovariate(1 / rng.choice([0.001, 0.1, 2.0]))

    loopback = Loopback(size, latency_s=0.001, delay=delay)
    return loopback, lambda worker: rng.expovariate(1.0) * (slow if worker == 0 else 1.0)
