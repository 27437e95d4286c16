"""ShardClient: what a worker does with one shard, towards the server that has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import torch

from compressa.aggregators.base import StepContext
from compressa.collectives.base import Compute, Exchange, Program
from compressa.parameter_server.coding import ShardCoder
from compressa.parameter_server.job import Job
from compressa.parameter_server.keys import Shard
from compressa.parameter_server.programs import Programs
from compressa.parameter_server.protocol import LEAD_STEPS
from compressa.parameter_server.server import Server
from compressa.parameter_server.slots import WORD_BYTES, ServerTime

_ROOMS = LEAD_STEPS + 1  # the window sees to it that what was in one before is done with

GRACE_S = 2.0  # the server's own wait, for the other workers, must end first: it knows who is late


class ShardClient:
    """One shard at one worker.

    Args:
        shard: The shard.
        coder: The worker's.
        job: What all ranks have agreed upon.
        worker: Number of the worker.
        programs: Of this rank.
        server_time: The clock of the shard's server.
    """

    def __init__(
        self,
        shard: Shard,
        coder: ShardCoder,
        job: Job,
        worker: int,
        programs: Programs,
        server_time: ServerTime,
    ) -> None:
        self.shard = shard
        self._coder, self._worker, self._programs = coder, worker, programs
        self._epoch = job.epoch
        self._server_rank = job.placement.servers[shard.server]
        self._push_unit = job.units.push(shard)
        self._answer_unit = job.units.answer(shard, worker)
        self._in_slots = job.server_bits_per_s is not None
        self._slot_unit = job.units.slot(shard, worker)
        self._server_time = server_time
        self._name = f"key {shard.segment.name!r}"
        self._push_rooms = [coder.buffer() for _ in range(_ROOMS)]
        self._answer_rooms = [coder.buffer() for _ in range(_ROOMS)]
        self._encoded: Future[None] = Future()  # of the last push
        self._encoded.set_result(None)
        self._expected: dict[int, tuple[torch.Tensor, Future[None]]] = {}

    def push(self, step: int, values: torch.Tensor, own: Server | None) -> Future[None]:
        """Encode the shard's part of a key's values, after that of the step before, and send it.

        Args:
            step: The step.
            values: float32, 1-D; the whole key, unchanged until the future is done.
            own: The server, if it is in this process.

        Returns:
            A future, done when the payload has left, or the server of this process has it.
        """
        before, self._encoded = self._encoded, Future()
        encoded, done = self._encoded, self._programs.promise()
        name = f"push of {self._name}"

        def begin(_: Future[None]) -> None:
            if own is not None or not self._in_slots:
                start(self._pushing(step, values, encoded, own))
                return
            program = self._encoding(step, values, encoded, send)
            task = self._programs.start(program, name, step=step, unit=self._slot_unit)
            task.add_done_callback(lambda _: _release(encoded))

        def send(payload: torch.Tensor, begin_s: float) -> None:
            self._programs.session.call_at(begin_s, lambda: start(self._sending(payload)))

        def start(program: Program[None]) -> None:
            task = self._programs.start(program, name, step=step, unit=self._push_unit)
            task.add_done_callback(end)

        def end(task: Future[None]) -> None:
            _release(encoded)
            if task.exception() is None:
                self._programs.keep(done)

        before.add_done_callback(begin)
        return done

    def pull(self, step: int, out: torch.Tensor, own: Server | None) -> Future[None]:
        """Expect the server's answer, and decode it to the shard's part of a key's values.

        Args:
            step: The step.
            out: float32, 1-D; the whole key.
            own: The server, if it is in this process.

        Returns:
            A future, done when `out` has been written.
        """
        if own is not None:
            promise = self._programs.promise()
            self._expected[step] = (out, promise)
            return promise
        name = f"pull of {self._name}"
        program = self._pulling(step, out)
        return self._programs.start(program, name, step=step, unit=self._answer_unit)

    def deliver(self, step: int, payload: torch.Tensor) -> None:
        """Take the answer of the server in this process; on the driver's thread.

        Args:
            step: One that was pulled.
            payload: uint8[length]; not written to.
        """
        out, promise = self._expected.pop(step)

        def program() -> Program[None]:
            yield self._decoding(step, payload, out)
            self._programs.keep(promise)

        self._programs.start(program(), f"pull of {self._name}", step=step)

    def _pushing(
        self, step: int, values: torch.Tensor, encoded: Future[None], own: Server | None
    ) -> Program[None]:
        payload = yield self._encode(step, values)
        _release(encoded)
        if own is not None:
            own.take(self.shard, self._worker, step, payload)
        else:
            yield from self._sending(payload)

    def _encoding(
        self,
        step: int,
        values: torch.Tensor,
        encoded: Future[None],
        send: Callable[[torch.Tensor, float], None],
    ) -> Program[None]:
        """Encode, and learn when to send."""
        payload = yield self._encode(step, values)
        _release(encoded)
        rank = self._server_rank
        word = torch.empty(WORD_BYTES, dtype=torch.uint8)
        received = yield Exchange({}, {rank: word}, grace_s=GRACE_S)
        send(payload, self._server_time.begin_s(received[rank], self._programs.session.now_s()))

    def _encode(self, step: int, values: torch.Tensor) -> Compute:
        room, context = self._push_rooms[step % _ROOMS], StepContext(step, self._epoch)
        ledger, name = self._programs.ledger, self._coder.name

        def encode() -> torch.Tensor:
            begun_s = time.perf_counter()
            payload = self._coder.encode(values, context, room)
            ledger.add_time(name, "encode", time.perf_counter() - begun_s)
            ledger.add_unit(name, values.itemsize * self.shard.segment.elems, payload.numel())
            return payload

        return Compute(encode, "encode")

    def _sending(self, payload: torch.Tensor) -> Program[None]:
        rank, most_bytes = self._server_rank, self._coder.wire_bytes
        yield Exchange({rank: payload}, {}, capacity_bytes={rank: most_bytes})

    def _pulling(self, step: int, out: torch.Tensor) -> Program[None]:
        incoming = {self._server_rank: self._answer_rooms[step % _ROOMS]}
        received = yield Exchange({}, incoming, self._coder.exact, grace_s=GRACE_S)
        yield self._decoding(step, received[self._server_rank], out)

    def _decoding(self, step: int, payload: torch.Tensor, out: torch.Tensor) -> Compute:
        context, rank = StepContext(step, self._epoch), self._server_rank
        return Compute(lambda: self._coder.decode(payload, context, rank, out), "decode")


def _release(encoded: Future[None]) -> None:
    if not encoded.done():
        encoded.set_result(None)
