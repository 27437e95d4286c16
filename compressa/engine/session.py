"""Session: the engine's control channel, transport and communication thread, without a model.

What brings bytes from rank to rank outside of a training step (parameters, keys and values,
benchmarks) runs its programs here: the same driver, deadlines and errors as gradients have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from typing import Any, Self

import torch.distributed as dist

from compressa.collectives.base import Program
from compressa.config import Config
from compressa.engine import startup
from compressa.engine.communication import Communication
from compressa.engine.driver import Task
from compressa.engine.lanes import Lane
from compressa.errors import CompressaError, Timeout
from compressa.parameters import ParameterInfo
from compressa.schedulers import Plan, Transfer

_MARGIN_S = 10.0  # the communication thread's own deadline comes first: it knows whom it waits for
_CLOSE_S = 5.0


class Session:
    """Runs programs on one rank; to open one is collective over a process group.

    Args:
        config: Says which transport, and how long a wait may be. All ranks' must be equal.
        group: Who takes part.
        elems: How many float32 values a step brings at most: a peer may be ahead by so much.
        threads: How many threads encode and decode.

    Attributes:
        rank: This rank's place in the group.
        size: Number of ranks.
        transport: Carries the exchanges.

    Raises:
        ConfigError: The ranks do not agree, or there is no such transport.
        Timeout: Not all ranks open one.
    """

    def __init__(
        self, config: Config, group: dist.ProcessGroup, elems: int, threads: int = 1
    ) -> None:
        self._deadline_s = config.exchange.deadline_s
        self._groups: list[dist.ProcessGroup] = []
        # Whom the transport tells that it has failed: kept until somebody can act upon it.
        lost: list[CompressaError] = []
        self._tell: Callable[[CompressaError], object] = lost.append
        self._step = 0
        try:
            self._open(config, group, [ParameterInfo(0, "values", (elems,))], threads)
        except BaseException:
            startup.release_groups(self._groups)
            raise
        for error in lost:
            self._communication.fail(error)

    def _open(
        self,
        config: Config,
        group: dist.ProcessGroup,
        parameters: Sequence[ParameterInfo],
        threads: int,
    ) -> None:
        lane = Lane()
        kind = startup.choose_transport(config, group, lane.device)
        self._groups.append(startup.new_group(config, group, "gloo"))
        self._control = startup.open_control(config, self._groups[0])
        try:
            self.rank, self.size = self._control.rank, self._control.size
            own = startup.digest(config, None, parameters, kind)
            startup.agree(self._control, own, self._deadline_s)
            self._groups.append(startup.new_group(config, group, "gloo"))
            self.transport = startup.open_transport(
                config, self._groups[1], self._control, parameters, self._failed, kind, lane
            )
            self._communication = Communication(
                self.transport,
                threads,
                self._deadline_s,
                self._control.verdict,
                _ignore,
                _ignore,
                lane,
            )
        except BaseException:
            self._control.close(_CLOSE_S)
            raise
        self._tell = self._communication.fail
        self._control.listen(self._failed)

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def follow(self, transfers: Sequence[Transfer], ordered: Sequence[int]) -> None:
        """Plan the programs to come: their exchanges, and which stages are launched in order."""
        order = tuple((transfer.unit, transfer.stage) for transfer in transfers)
        plan = Plan(order, self._step + 1)
        self._communication.follow(plan, [(0, stage) for stage in ordered])

    def start(
        self, program: Program[None], *, step: int, unit: int = 0, name: str = "session"
    ) -> Future[None]:
        """Begin a program, beside others that are under way.

        Args:
            program: All ranks that it exchanges with must begin its counterpart.
            step: With `unit`, what tells its messages from those of others.
            unit: As `step`.
            name: What messages of errors call it.
        """
        done: Future[None] = Future()

        def finished(error: BaseException | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._communication.start(Task(unit, name, step, program, finished))
        return done

    def wait(self, future: Future[None]) -> None:
        """Wait for the end of a program.

        Raises:
            CompressaError: It failed.
        """
        try:
            future.result(self._deadline_s + _MARGIN_S)
        except NotDone:
            raise Timeout(
                (), f"rank {self.rank}: the communication thread does not answer"
            ) from None

    def run(self, program: Program[None]) -> None:
        """Run a program as one step, and wait for its end.

        Raises:
            CompressaError: It failed.
        """
        self._step += 1
        self.wait(self.start(program, step=self._step))

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._control.all_gather(b"here", "barrier", self._deadline_s)

    def slowest(self, seconds: float) -> float:
        """Return the largest number of all ranks."""
        texts = self._control.all_gather(repr(seconds).encode(), "time", self._deadline_s)
        return max(float(text) for text in texts)

    def close(self) -> None:
        """End threads and connections. Ranks may close at different times."""
        begin_s = time.monotonic()
        try:
            self._communication.close(_CLOSE_S)
        finally:
            self._control.close(max(1.0, _CLOSE_S - (time.monotonic() - begin_s)))
        startup.release_groups(self._groups)

    def _failed(self, error: CompressaError) -> None:
        self._tell(error)


def _ignore(*_: Any) -> None:
    """Nothing to be told: what fails ends the program under way with its error."""
