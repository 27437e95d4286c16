"""Worker: pushes and pulls keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Self

import torch

from compressa.aggregators.base import State, World
from compressa.collectives.base import Exchange, Program
from compressa.engine.measuring.stats import Overlap, Stats
from compressa.engine.session import CLOSE_S, Session
from compressa.errors import CompressaError, StateError
from compressa.parameter_server.answering import AnswerCoder
from compressa.parameter_server.centre_client import CentreClient
from compressa.parameter_server.client import ShardClient
from compressa.parameter_server.coding import ShardCoder
from compressa.parameter_server.handle import Handle
from compressa.parameter_server.job import Job
from compressa.parameter_server.keys import Shard
from compressa.parameter_server.programs import Programs
from compressa.parameter_server.protocol import Kind, Request, Updates, Window
from compressa.parameter_server.server import Server
from compressa.parameter_server.slots import ServerTime
from compressa.parameters import ParameterInfo


class Worker:
    """The worker on one rank. Its methods are for one thread.

    Args:
        job: What all ranks have agreed upon.
        number: Of this worker.
        programs: Of this rank.
        values: By key, float32, 1-D, what servers keep at first; empty if they keep sums.

    Attributes:
        rank: Number of this worker, from 0.
        size: Number of workers.
        state: Residuals of what was pushed.
        server: The server of the same rank, if there is one.
    """

    def __init__(
        self, job: Job, number: int, programs: Programs, values: Sequence[torch.Tensor] = ()
    ) -> None:
        self.rank, self.size = number, len(job.placement.workers)
        self.state = State()
        self._job, self._programs = job, programs
        self._world = World(number, self.size, job.seed, "scatter_reduce", self.state)
        self._times = [ServerTime(rank, job.deadline_s) for rank in job.placement.servers]
        self._views = [vector.clone() for vector in values]
        self._clients = [self._client(shard) for shard in job.table.shards]
        self._by_key = [self._interleaved(shards) for shards in job.table.by_key]
        self._kept = [job.table.keys_of(number) for number in range(len(job.placement.servers))]
        window = Window if job.consistency is None else Updates
        self._windows = [window(key.name, job.first_step) for key in job.table.parameters]
        self._requests = [0] * len(job.placement.servers)
        self._under_way: list[Handle] = []
        self._closed = False
        self._own = job.placement.server_at(programs.rank)
        self.server: Server | None = None
        if self._own is not None:
            self.server = Server(job, self._own, programs, self._deliver, values)

    def __enter__(self) -> Self:
        """Return the worker."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close it; after an error without waiting, and the others hear of it."""
        if kind is None:
            self.close()
        else:
            self.end()

    def push(
        self,
        keys: str | Sequence[str],
        values: torch.Tensor | Sequence[torch.Tensor],
        *,
        step: int | None = None,
        rate: float = 1.0,
    ) -> Handle:
        """Send this worker's values of some keys; returns at once.

        A step of a key is complete when every worker has pushed it. Steps follow each other; a
        worker may push step t when it has waited for a pull of step t - 2 or of a later one.

        Where servers keep values, these are updates of them, the steps a worker's clock, of which
        some may be left out, and each push is pulled and waited for before the next.

        Args:
            keys: Names, or one.
            values: Of each a tensor of the key's shape, float32 on the CPU; not to be changed
                until the handle has been waited for.
            step: Number of the step; the next one of the first key unless given.
            rate: The learning rate of an update, where delays are compensated.

        Raises:
            StateError: The step or a value does not fit.
            CompressaError: Something failed before.
        """
        names, numbers = self._look_up(keys)
        vectors = self._vectors(numbers, _listed(values), into=False)
        step = self._windows[numbers[0]].pushed + 1 if step is None else step
        for number in numbers:
            self._windows[number].check_push(step)
        for number in numbers:
            self._windows[number].push(step)
        futures = self._tell(Kind.PUSH, step, numbers, rate)
        self._programs.ledger.steps = step + 1 - self._job.first_step
        for number, vector in zip(numbers, vectors, strict=True):
            futures += [
                client.push(step, vector, self._server_of(client.shard))
                for client in self._by_key[number]
            ]
        return self._begun(Handle(step, names, {}, futures))

    def pull(
        self,
        keys: str | Sequence[str],
        out: torch.Tensor | Sequence[torch.Tensor] | None = None,
        *,
        step: int | None = None,
    ) -> Handle:
        """Ask for the mean over the workers of what they push; returns at once.

        Where servers keep values, ask for these; the answer comes when all workers are as far as
        the consistency says.

        Args:
            keys: Names, or one.
            out: Where the means go, contiguous, otherwise as the values of a push; new tensors
                unless given.
            step: Number of the step, which this worker must have pushed; the last one that it has
                pushed of the first key unless given. Each is pulled once at most, in their order.
                A step that is left out is not made up for by later ones, though what others pushed
                of it is gone from their residuals: a worker that left it out is apart from them.

        Returns:
            A handle for `wait`, which returns the means.

        Raises:
            StateError: The step or a tensor does not fit.
            CompressaError: Something failed before.
        """
        names, numbers = self._look_up(keys)
        shapes = [self._job.table.parameters[number].shape for number in numbers]
        tensors = [torch.empty(shape) for shape in shapes] if out is None else _listed(out)
        vectors = self._vectors(numbers, tensors, into=True)
        step = self._windows[numbers[0]].pushed if step is None else step
        for number in numbers:
            self._windows[number].check_pull(step)
        for number in numbers:
            self._windows[number].pull(step)
        futures = []
        for number, vector in zip(numbers, vectors, strict=True):
            futures += [
                client.pull(step, vector, self._server_of(client.shard))
                for client in self._by_key[number]
            ]
        futures += self._tell(Kind.PULL, step, numbers)
        return self._begun(Handle(step, names, dict(zip(names, tensors, strict=True)), futures))

    def meet(self, out: Sequence[torch.Tensor] | None = None) -> Handle:
        """Ask for all values as they are when every worker has called this; returns at once.

        In place of a push, which counts as a step of each. Meanwhile this worker holds nobody up.

        Args:
            out: As for `pull` of all keys.

        Returns:
            As `pull`. All workers get the same bits.

        Raises:
            StateError: Servers keep no values, or an answer was not waited for.
            CompressaError: Something failed before.
        """
        if self._job.consistency is None:
            raise StateError("the servers keep sums; open them with values and a staleness to meet")
        names, numbers = self._look_up(tuple(self._job.table.numbers))
        for number in numbers:
            self._windows[number].check_push(self._windows[number].pushed + 1)
        shapes = [self._job.table.parameters[number].shape for number in numbers]
        tensors = [torch.empty(shape) for shape in shapes] if out is None else _listed(out)
        vectors = self._vectors(numbers, tensors, into=True)
        futures = []
        for number, vector in zip(numbers, vectors, strict=True):
            for client in self._by_key[number]:
                assert isinstance(client, CentreClient), "servers keep values"
                step, own = self._windows[number].pushed + 1, self._server_of(client.shard)
                futures.append(client.meet(step, vector, own))
        futures += self._tell(Kind.MEET, 0, ())
        values = dict(zip(names, tensors, strict=True))
        return self._begun(Handle(0, names, values, futures, meets=True))

    def front(self, key: str) -> int:
        """Return the step up to which what was pulled of a key has every worker's updates."""
        clients = self._by_key[self._job.table.numbers[key]]
        return min(client.front for client in clients if isinstance(client, CentreClient))

    def wait(self, handle: Handle) -> dict[str, torch.Tensor]:
        """Wait for a push or a pull.

        Args:
            handle: What `push`, `pull` or `meet` has returned.

        Returns:
            Of a pull, the means by key; of a push, nothing.

        Raises:
            PeerLost: A rank died, or left without closing.
            Timeout: Somebody has not done its part within the deadline.
            PayloadError: Somebody sent what is not due.
        """
        begun_s = time.perf_counter()
        for future in handle._futures:
            self._programs.wait(future)
        self._programs.ledger.exposed_s += time.perf_counter() - begun_s
        if handle in self._under_way:
            self._under_way.remove(handle)
            for name in handle.values:
                step = self.front(name) if handle.meets else handle.step
                self._windows[self._job.table.numbers[name]].waited(step)
        return handle.values

    def restart(self, values: Sequence[torch.Tensor], step: int) -> None:
        """Have the servers of all ranks keep other values, as after a checkpoint was read.

        All ranks call it, with the same, and meet before they push; all are workers, and nothing
        is under way.

        Args:
            values: By key, float32, 1-D.
            step: The last step that was done.
        """
        for view, vector in zip(self._views, values, strict=True):
            view.copy_(vector)
        for kept in (*self._windows, *self._clients):
            assert isinstance(kept, Updates | CentreClient), "servers keep values"
            kept.restart(step)
        if self.server is not None:
            self.server.restart(values, step)

    @property
    def failure(self) -> CompressaError | None:
        """Why it can do nothing any more, if so."""
        return self._programs.error

    @property
    def session(self) -> Session:
        """What is open between the ranks."""
        return self._programs.session

    @property
    def parameters(self) -> tuple[ParameterInfo, ...]:
        """The keys."""
        return self._job.table.parameters

    def stats(self) -> Stats:
        """Return what was measured since the start, on this rank; a step is a push of all keys."""
        traffic = self.session.transport.traffic
        ledger = self._programs.ledger
        return ledger.snapshot(traffic.sent_bytes, traffic.messages, Overlap())

    def close(self) -> None:
        """Wait for what is under way, say goodbye to the servers, and end.

        A colocated server works until all workers have closed, and so long this takes. After a
        failure, it only ends.

        Raises:
            CompressaError: Something fails meanwhile.
        """
        if self._closed:
            return
        try:
            if self._programs.error is None:
                self._say_goodbye()
                if self.server is not None:
                    self._programs.wait(self.server.closed)
        finally:
            self.end()

    def _say_goodbye(self) -> None:
        for handle in list(self._under_way):
            self.wait(handle)
        for future in self._tell(Kind.CLOSE, 0, ()):
            self._programs.wait(future)

    def end(self, wait_s: float = CLOSE_S) -> None:
        """End threads and connections without a word; the servers lose this worker.

        Args:
            wait_s: Longest wait for the other ranks' goodbyes, in seconds.
        """
        if not self._closed:
            self._closed = True
            self._programs.session.close(wait_s)

    def _client(self, shard: Shard) -> ShardClient:
        job, coding = self._job, self._job.table.codings[shard.key]
        coder = ShardCoder(shard.number, shard.segment, coding, self._world, serves=False)
        if job.consistency is None:
            time = self._times[shard.server]
            return ShardClient(shard, coder, job, self.rank, self._programs, time)
        answers = AnswerCoder(
            shard.number, shard.segment, coding.codec, replace(self._world, rank=0)
        )
        view = self._views[shard.key]
        return CentreClient(shard, (coder, answers), job, self.rank, self._programs, view)

    def _begun(self, handle: Handle) -> Handle:
        self._under_way = [h for h in self._under_way if h.values or not h.done] + [handle]
        return handle

    def _server_of(self, shard: Shard) -> Server | None:
        """Return a shard's server, if it is in this process."""
        return self.server if shard.server == self._own else None

    def _deliver(self, shard: Shard, step: int, payload: torch.Tensor) -> None:
        self._clients[shard.number].deliver(step, payload)

    def _interleaved(self, shards: Sequence[Shard]) -> list[ShardClient]:
        """Return what goes to the servers of a key; each worker begins with another one.

        All of them get their first shard before one gets its second: so all have something to sum.
        """
        servers = len(self._job.placement.servers)
        return [
            self._clients[shard.number]
            for shard in sorted(
                shards, key=lambda s: (s.index, (s.server - self.rank - 1) % servers)
            )
        ]

    def _tell(
        self, kind: Kind, step: int, keys: Sequence[int], rate: float = 1.0
    ) -> list[Future[None]]:
        """Send a request to every server that it concerns."""
        count, futures = len(self._requests), []
        for shift in range(count):
            server = (self.rank + 1 + shift) % count
            here = tuple(key for key in keys if key in self._kept[server])
            if here or kind in (Kind.CLOSE, Kind.MEET):
                request = Request(kind, self._job.epoch, step, here, rate)
                futures.append(self._request(server, request))
        return futures

    def _request(self, server: int, request: Request) -> Future[None]:
        number, self._requests[server] = self._requests[server], self._requests[server] + 1
        rank = self._job.placement.servers[server]

        def program() -> Program[None]:
            if self.server is not None and server == self._own:
                self.server.heed(self.rank, request)
            else:
                yield Exchange({rank: request.written()}, {})

        unit = self._job.units.request(self.rank, server, number)
        return self._programs.start(program(), f"request to rank {rank}", unit=unit)

    def _look_up(self, keys: str | Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
        self._programs.check()
        if self._closed:
            raise StateError("the worker is closed; open another parameter server")
        names = (keys,) if isinstance(keys, str) else tuple(keys)
        known = self._job.table.numbers
        unknown = [name for name in names if name not in known]
        if not names or unknown or len(set(names)) != len(names):
            raise StateError(
                f"keys {list(names)} are not some of {list(known)[:20]}, each once; name the keys "
                "that the parameter server was opened with"
            )
        return names, [known[name] for name in names]

    def _vectors(
        self, numbers: Sequence[int], tensors: Sequence[torch.Tensor], *, into: bool
    ) -> list[torch.Tensor]:
        if len(tensors) != len(numbers):
            raise StateError(f"{len(tensors)} tensors are given for {len(numbers)} keys")
        parameters = [self._job.table.parameters[number] for number in numbers]
        for key, x in zip(parameters, tensors, strict=True):
            fits = x.dtype is torch.float32 and x.device.type == "cpu" and x.shape == key.shape
            if not fits or (into and not x.is_contiguous()):
                raise StateError(
                    f"key {key.name!r} needs {'contiguous ' * into}float32 of shape {key.shape} on "
                    f"the CPU, not {x.dtype} of shape {tuple(x.shape)} on {x.device}"
                )
        return [x.detach().contiguous().view(-1) for x in tensors]


def _listed(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors
