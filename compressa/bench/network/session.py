"""Session: the engine's control channel, transport and communication thread, without a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from compressa.collectives.base import Program
from compressa.config import load_config
from compressa.engine import startup
from compressa.engine.communication import Communication
from compressa.engine.driver import Task
from compressa.engine.lanes import Lane
from compressa.errors import CompressaError, Timeout
from compressa.parameters import ParameterInfo
from compressa.schedulers import Plan, Transfer

_THREADS = 1
_SILENCE_S = 60.0  # many ranks may share few processors
_MARGIN_S = 10.0  # the communication thread's own deadline comes first: it knows whom it waits for


class Session:
    """What runs programs on one rank, over TCP; the default process group must be there.

    Args:
        most_bytes: Of a message.
        deadline_s: Longest wait for one.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        transport: Carries the exchanges.
    """

    def __init__(self, most_bytes: int, deadline_s: float) -> None:
        exchange = {"transport": "tcp", "deadline_s": deadline_s, "silence_s": _SILENCE_S}
        config = load_config({"exchange": exchange})
        world = dist.group.WORLD
        assert world is not None
        self._deadline_s = deadline_s
        self._control = startup.open_control(config, startup.new_group(config, world, "gloo"))
        startup.agree(self._control, startup.digest(config, None, [], "tcp"), deadline_s)
        self.rank, self.size = self._control.rank, self._control.size
        group = startup.new_group(config, world, "gloo")
        parameters = [ParameterInfo(0, "values", (most_bytes // 4 + 1,))]
        lane = Lane()
        lost: list[CompressaError] = []
        # Whom the transport tells that it has failed: kept until somebody can act upon it.
        self._tell: Callable[[CompressaError], object] = lost.append
        self.transport = startup.open_transport(
            config, group, self._control, parameters, self._failed, "tcp", lane
        )
        self._communication = Communication(
            self.transport, _THREADS, deadline_s, self._control.verdict, _ignore, _ignore, lane
        )
        self._tell = self._communication.fail
        for error in lost:
            self._communication.fail(error)
        self._control.listen(self._failed)
        self._step = 0

    def follow(self, transfers: Sequence[Transfer], ordered: Sequence[int]) -> None:
        """Plan the programs to come: their exchanges, and which stages are launched in order."""
        order = tuple((transfer.unit, transfer.stage) for transfer in transfers)
        plan = Plan(order, self._step + 1)
        self._communication.follow(plan, [(0, stage) for stage in ordered])

    def _failed(self, error: CompressaError) -> None:
        self._tell(error)

    def run(self, program: Program[None]) -> None:
        """Run a program as one step, and wait for its end.

        Raises:
            CompressaError: It failed.
        """
        ended = threading.Event()
        errors: list[BaseException | None] = []

        def finished(error: BaseException | None) -> None:
            errors.append(error)
            ended.set()

        self._step += 1
        self._communication.start(Task(0, "bench", self._step, program, finished))
        if not ended.wait(self._deadline_s + _MARGIN_S):
            raise Timeout((), f"rank {self.rank}: the communication thread does not answer")
        if errors[0] is not None:
            raise errors[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._control.all_gather(b"here", "barrier", self._deadline_s)

    def slowest(self, seconds: float) -> float:
        """Return the largest number of all ranks."""
        texts = self._control.all_gather(repr(seconds).encode(), "time", self._deadline_s)
        return max(float(text) for text in texts)


def join(deadline_s: float) -> None:
    """Join the default process group, as the environment says, on one thread."""
    torch.set_num_threads(_THREADS)
    dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))


def _ignore(*_: Any) -> None:
    """Nothing to be told: what fails ends the program under way with its error."""
