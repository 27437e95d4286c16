"""Server: sums what workers push, and answers their pulls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Self

import torch

from compressa.aggregators.base import State, World
from compressa.collectives.base import Exchange, Program
from compressa.engine.measuring.stats import Overlap, Stats
from compressa.errors import PayloadError
from compressa.parameter_server.aggregation import ShardAggregation
from compressa.parameter_server.answering import AnswerCoder
from compressa.parameter_server.centre import ShardCentre
from compressa.parameter_server.clocks import Consistency
from compressa.parameter_server.coding import ShardCoder
from compressa.parameter_server.job import Job
from compressa.parameter_server.keys import Shard
from compressa.parameter_server.programs import Programs
from compressa.parameter_server.protocol import Kind, Request
from compressa.parameter_server.slots import Slots, write_word

OwnAnswer = Callable[[Shard, int, torch.Tensor], None]
"""(shard, step, payload): takes the answers to the worker in the same process."""


class Server:
    """The server on one rank; all its work is done on the session's threads.

    Args:
        job: What all ranks have agreed upon.
        number: Of this server.
        programs: Of this rank.
        own_answer: Takes the answers to the worker of the same rank; None without one.
        values: By key, float32, 1-D, what is kept at first; empty if sums are.

    Attributes:
        state: Residuals of the sums.
        closed: Done when all workers have closed.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        programs: Programs,
        own_answer: OwnAnswer | None = None,
        values: Sequence[torch.Tensor] = (),
    ) -> None:
        self.state = State()
        self.closed: Future[None] = programs.promise()
        self._job, self._number, self._programs = job, number, programs
        self._own_answer = own_answer
        rate, session = job.server_bits_per_s, programs.session
        far = [worker for worker in job.placement.workers if worker != programs.rank]
        self._slots = Slots(rate, len(far), session.now_s, session.call_at) if rate else None
        self._world = World(0, len(job.placement.workers), job.seed, "scatter_reduce", self.state)
        self._shards: dict[int, ShardAggregation | ShardCentre] = {}
        for shard in job.table.served_by(number):
            self._shards[shard.number] = (
                self._aggregation(shard)
                if job.consistency is None
                else self._centre(shard, job.consistency, values[shard.key])
            )
        self._by_key: dict[int, list[ShardAggregation | ShardCentre]] = {}
        for kept in self._shards.values():
            self._by_key.setdefault(kept.shard.key, []).append(kept)
        self._working = set(range(len(job.placement.workers)))
        for worker, rank in enumerate(job.placement.workers):
            if rank != programs.rank:
                self._listen(worker, 0)

    def __enter__(self) -> Self:
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def serve(self) -> None:
        """Work until all workers have closed; then close. A dedicated server's whole life.

        Raises:
            PeerLost: A rank died, or left without closing.
            Timeout: A worker has not pushed what others have, within the deadline.
            PayloadError: A worker sent what is not due.
        """
        try:
            self.closed.result()
        finally:
            self.close()

    def stats(self) -> Stats:
        """Return what was measured since the start, on this rank."""
        traffic, ledger = self._programs.session.transport.traffic, self._programs.ledger
        return ledger.snapshot(traffic.sent_bytes, traffic.messages, Overlap())

    def close(self) -> None:
        """End threads and connections; workers that are not done yet lose their server."""
        self._programs.session.close()

    def heed(self, worker: int, request: Request) -> None:
        """Take the next request of a worker; on the driver's thread.

        Args:
            worker: Number of the worker.
            request: What it is about to do.

        Raises:
            PayloadError: It asks for what can not be.
        """
        if request.kind in (Kind.CLOSE, Kind.MEET):
            self._heed_end(worker, request.kind)
            return
        for key in request.keys:
            if key not in self._by_key:
                rank = self._job.placement.workers[worker]
                raise PayloadError(f"rank {rank} names key {key}, which is not kept here")
            for shard in self._by_key[key]:
                if request.kind is Kind.PULL:
                    shard.ask(worker, request.step)
                elif isinstance(shard, ShardCentre):
                    shard.announce(worker, request.step, request.rate)
                elif request.rate != 1.0:
                    rank = self._job.placement.workers[worker]
                    raise PayloadError(f"rank {rank} gives a learning rate, where sums are kept")
                else:
                    self._ask_for_slot(shard, worker, shard.announce(worker, request.step))

    def _heed_end(self, worker: int, kind: Kind) -> None:
        for shard in self._shards.values():
            if isinstance(shard, ShardCentre):
                (shard.meet if kind is Kind.MEET else shard.leave)(worker)
            elif kind is Kind.MEET:
                rank = self._job.placement.workers[worker]
                raise PayloadError(f"rank {rank} asks to meet, where sums are kept and no values")
        if kind is Kind.CLOSE:
            self._working.discard(worker)
            if not self._working:
                self._programs.keep(self.closed)

    def restart(self, values: Sequence[torch.Tensor], step: int) -> None:
        """Keep other values; see `Worker.restart`."""
        for kept in self._shards.values():
            if isinstance(kept, ShardCentre):
                segment = kept.shard.segment
                kept.restart(values[kept.shard.key][segment.start : segment.stop], step)

    def take(self, shard: Shard, worker: int, step: int, payload: torch.Tensor) -> None:
        """Take what the worker of the same rank pushes; on the driver's thread.

        Args:
            shard: One of this server's.
            worker: Number of the worker.
            step: One that was announced.
            payload: uint8[length]; lent until the step is complete.
        """
        self._shards[shard.number].take(worker, step, payload)

    def _listen(self, worker: int, number: int) -> None:
        """Wait for the request of a worker with a running number, and then for the next one."""
        rank, epoch = self._job.placement.workers[worker], self._job.epoch
        room = torch.empty(Request.most_bytes(len(self._by_key)), dtype=torch.uint8)

        def program() -> Program[None]:
            received = yield Exchange({}, {rank: room}, exact=False, grace_s=math.inf)
            request = Request.read(received[rank], epoch, rank)
            self.heed(worker, request)
            if request.kind is not Kind.CLOSE:
                self._listen(worker, number + 1)

        unit = self._job.units.request(worker, self._number, number)
        self._programs.start(program(), f"requests of rank {rank}", unit=unit)

    def _ask_for_slot(self, kept: ShardAggregation, worker: int, step: int) -> None:
        """Have a worker of another rank be told when it may send, if there are slots."""
        rank = self._job.placement.workers[worker]
        if self._slots is not None and rank != self._programs.rank:
            give = partial(self._give_slot, kept.shard, worker, step)
            self._slots.ask(step, kept.shard.number, kept.most_bytes, give)

    def _give_slot(self, shard: Shard, worker: int, step: int, wait_s: float) -> None:
        rank = self._job.placement.workers[worker]
        word = write_word(self._programs.session.now_s(), wait_s)
        unit = self._job.units.slot(shard, worker)
        name = f"slot for key {shard.segment.name!r}"
        self._programs.send(rank, word, name, unit=unit, step=step)

    def _coder(self, shard: Shard) -> ShardCoder:
        coding = self._job.table.codings[shard.key]
        if self._job.consistency is not None:
            coding = replace(coding, rule=None)  # what an answer lacks is in the next one
        return ShardCoder(shard.number, shard.segment, coding, self._world, serves=True)

    def _aggregation(self, shard: Shard) -> ShardAggregation:
        job = self._job
        return ShardAggregation(
            shard,
            self._coder(shard),
            job.placement,
            job.units,
            self._programs,
            job.first_step,
            job.epoch,
            partial(self._answer, shard),
        )

    def _centre(self, shard: Shard, consistency: Consistency, values: torch.Tensor) -> ShardCentre:
        job, part = self._job, values[shard.segment.start : shard.segment.stop]
        codec = job.table.codings[shard.key].codec
        if shard.segment.parameter.exact:  # statistics, which are no sums of updates
            consistency = replace(consistency, weighting="mean", delay_compensation=0.0)
        answers = AnswerCoder(shard.number, shard.segment, codec, self._world)
        return ShardCentre(
            shard,
            (self._coder(shard), answers),
            job.placement,
            job.units,
            self._programs,
            job.first_step,
            job.epoch,
            partial(self._answer, shard),
            part.clone(),
            consistency,
            job.deadline_s,
        )

    def _answer(
        self, shard: Shard, worker: int, step: int, payload: torch.Tensor, most_bytes: int
    ) -> None:
        rank = self._job.placement.workers[worker]
        if rank == self._programs.rank:
            assert self._own_answer is not None  # a rank with a worker was given one
            self._own_answer(shard, step, payload)
            return
        if self._slots is not None:
            self._slots.note_answer(payload.numel())
        name = f"answer to a pull of key {shard.segment.name!r}"
        unit = self._job.units.answer(shard, worker)
        self._programs.send(rank, payload, name, unit=unit, step=step, capacity_bytes=most_bytes)
