"""CentreClient: what a worker does with one shard whose values its server keeps."""

from __future__ import annotations

import math
from concurrent.futures import Future

import torch

from compressa.aggregators.base import StepContext
from compressa.collectives.base import Compute, Exchange, Program
from compressa.parameter_server.answering import AnswerCoder
from compressa.parameter_server.client import GRACE_S, ShardClient
from compressa.parameter_server.coding import ShardCoder
from compressa.parameter_server.job import Job
from compressa.parameter_server.keys import Shard
from compressa.parameter_server.programs import Programs
from compressa.parameter_server.protocol import MOST_AHEAD
from compressa.parameter_server.server import Server
from compressa.parameter_server.slots import ServerTime


class CentreClient(ShardClient):
    """One shard at one worker; what it pulls is what it holds of the values, brought up to date.

    Args:
        shard: The shard.
        coders: Encodes updates, and decodes answers.
        job: What all ranks have agreed upon.
        worker: Number of the worker.
        programs: Of this rank.
        view: h, the whole key's, float32, 1-D; what the values were at first.

    Attributes:
        front: The step that all workers had done when the last answer was given.
    """

    def __init__(
        self,
        shard: Shard,
        coders: tuple[ShardCoder, AnswerCoder],
        job: Job,
        worker: int,
        programs: Programs,
        view: torch.Tensor,
    ) -> None:
        coder, self._answers = coders
        super().__init__(shard, coder, job, worker, programs, ServerTime(0, math.inf))
        assert job.consistency is not None, "the server keeps values"
        self._bound = job.consistency.staleness
        self._backup = job.consistency.backup_workers
        self._push_unit = job.units.update(shard, worker)
        self._room = self._answers.buffer()
        self._view = view
        self._meeting: int | None = None
        self.front = job.first_step - 1

    def meet(self, step: int, out: torch.Tensor, own: Server | None) -> Future[None]:
        """Expect the values themselves, when all workers have come.

        Args:
            step: One more than the last that was pushed.
            out: float32, 1-D; the whole key.
            own: The server, if it is in this process.

        Returns:
            As `pull`.
        """
        self._meeting = step
        return self.pull(step, out, own)

    def restart(self, step: int) -> None:
        """Go on as if a step had been answered last; nothing may be under way.

        Args:
            step: Which: `front` from now on. What a meeting was expected for is forgotten.
        """
        self.front, self._meeting = step, None

    def _pulling(self, step: int, out: torch.Tensor) -> Program[None]:
        rank, answers = self._server_rank, self._answers
        size, exact, grace_s = answers.wire_bytes, answers.exact, GRACE_S
        if step == self._meeting:  # the server knows who is late: others may have much to do
            size, exact, grace_s = answers.whole_bytes, True, math.inf
        received = yield Exchange({}, {rank: self._room[:size]}, exact, grace_s=grace_s)
        yield self._decoding(step, received[rank], out)

    def _decoding(self, step: int, payload: torch.Tensor, out: torch.Tensor) -> Compute:
        context, rank, segment = (
            StepContext(step, self._epoch),
            self._server_rank,
            self.shard.segment,
        )
        whole = step == self._meeting
        ahead = MOST_AHEAD if whole or self._backup else 0
        steps = (-math.inf if whole else step - self._bound, step + ahead)

        def decode() -> None:
            part = self._view[segment.start : segment.stop]
            self.front = self._answers.decode(payload, part, context, rank, steps, whole=whole)
            out[segment.start : segment.stop].copy_(part)

        return Compute(decode, "decode")
