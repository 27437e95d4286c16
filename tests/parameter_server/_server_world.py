"""A parameter server whose ranks all live in one process, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch
from compressa.schedulers import Plan, Transfer

from compressa.collectives.base import Program
from compressa.config import load_config
from compressa.engine.driver import Driver
from compressa.engine.task import Task
from compressa.errors import CompressaError, StateError
from compressa.parameter_server import Consistency, Server, Worker
from compressa.parameter_server.job import assign_roles, plan_job
from compressa.parameter_server.opening import begin, values_of
from compressa.testing.rank import compute_now
from compressa.transports.loopback import Loopback

DEADLINE_S = 60.0
EPOCH = 7


class LoopbackSession:
    """What a `Session` is, on a virtual clock: waiting lets the time of all ranks pass."""

    def __init__(self, loopback: Loopback, rank: int) -> None:
        self.rank, self.size = rank, loopback.size
        self._clock = loopback.clock
        transport = loopback.transports[rank]
        self.driver = Driver(
            transport, compute_now, self._post, lambda: self._clock.now_s, DEADLINE_S
        )
        transport.failed = self.fail
        self.peers: list[LoopbackSession] = [self]
        self.error: CompressaError | None = None
        self.closed = False

    def follow(self, transfers: Sequence[Transfer], ordered: Sequence[int]) -> None:
        order = tuple((transfer.unit, transfer.stage) for transfer in transfers)
        self.driver.follow(Plan(order), [(0, stage) for stage in ordered])

    def start(
        self, program: Program[None], *, step: int, unit: int = 0, name: str = ""
    ) -> Future[None]:
        done: Future[None] = Future()

        def finished(error: BaseException | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def begin() -> None:
            if self.error is not None:
                finished(self.error)
            else:
                self.driver.start(Task(unit, name, step, program, finished))

        self._post(begin)
        return done

    def now_s(self) -> float:
        return self._clock.now_s

    def call_at(self, time_s: float, event: Callable[[], None]) -> None:
        self._clock.at(time_s, event)

    def wait(self, future: Future[None]) -> None:
        if not future.done():
            self._clock.run()
        if not future.done():
            self._clock.at(self._clock.now_s + 1.01 * DEADLINE_S, lambda: None)
            self._clock.run()
            for session in self.peers:
                session.expire()
        if not future.done():
            raise StateError("nobody will ever complete this")
        future.result()

    def fail(self, error: CompressaError) -> None:
        for session in self.peers:  # the control channel's work
            if session.error is None:
                session.error = error
                session.driver.fail(error)

    def expire(self) -> None:
        error = self.driver.expired(self.now_s())
        if error is not None:
            self.fail(error)

    def close(self, wait_s: float = 0.0) -> None:
        self.closed = True

    def _post(self, event: Any) -> None:
        self._clock.at(self._clock.now_s, event)


class ServerWorld:
    """All ranks of a parameter server.

    Args:
        size: Number of ranks.
        keys: Shapes by name.
        config: A configuration; every key is cut as far as it can be, unless it says otherwise.
        servers: As in `open_parameter_server`.
        colocated: As in `open_parameter_server`.
        loopback: The network; ideal if not given.
        first_step: As in `open_parameter_server`.
        consistency: As in `open_parameter_server`.
        values: What servers keep at first; zeros if not given.
    """

    def __init__(
        self,
        size: int,
        keys: Mapping[str, Sequence[int]],
        config: Mapping[str, Any] | None = None,
        *,
        servers: int | Sequence[int] | None = None,
        colocated: bool = True,
        loopback: Loopback | None = None,
        first_step: int = 0,
        consistency: Consistency | None = None,
        values: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        config = dict(config or {})
        config["exchange"] = {"unit_payload_bytes": 1, **config.get("exchange", {})}
        self.loopback = loopback or Loopback(size)
        self.placement = assign_roles(size, servers, colocated=colocated)
        job = plan_job(load_config(config), keys, self.placement, first_step, consistency)
        kept = () if consistency is None else values_of(values or keys)
        self.job = replace(job, epoch=0)
        self.sessions = [LoopbackSession(self.loopback, rank) for rank in range(size)]
        for session in self.sessions:
            session.peers = self.sessions
        self.nodes = [begin(self.job, session, kept) for session in self.sessions]
        self.workers = [node for node in self.nodes if isinstance(node, Worker)]

    @property
    def servers(self) -> list[Server]:
        """By number."""
        found = []
        for rank in self.placement.servers:
            node = self.nodes[rank]
            server = node.server if isinstance(node, Worker) else node
            assert server is not None
            found.append(server)
        return found

    def step(self, values: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        """Push what every worker has, and pull it; returns the means by worker."""
        names = list(values[0])
        for worker, own in zip(self.workers, values, strict=True):
            worker.push(names, [own[name] for name in names])
        handles = [worker.pull(names) for worker in self.workers]
        pairs = zip(self.workers, handles, strict=True)
        return [worker.wait(handle) for worker, handle in pairs]

    def raise_failure(self) -> None:
        """Raise the first error that a session has."""
        for session in self.sessions:
            if session.error is not None:
                raise session.error

    def close(self) -> None:
        """Have all workers close: each would wait for the others."""
        for worker in self.workers:
            worker._say_goodbye()
        for worker in self.workers:
            worker.close()
