"""Session: the engine's control channel, transport and communication thread, without a model.

What brings bytes from rank to rank outside of a training step (parameters, keys and values,
benchmarks) runs its programs here: the same driver, deadlines and errors as gradients have.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from functools import partial
from typing import Any, Self

import torch.distributed as dist

from compressa.collectives.base import Program
from compressa.config import Config, first_difference
from compressa.engine import process_groups, startup
from compressa.engine.communication import Communication
from compressa.engine.driver import Task
from compressa.engine.lanes import Lane
from compressa.engine.late import Late
from compressa.engine.waits import Doing
from compressa.errors import CompressaError, ConfigError, Timeout
from compressa.parameters import ParameterInfo
from compressa.schedulers import Plan, Transfer
from compressa.transports.reactor import Reactor
from compressa.transports.table import TRANSPORTS

_MARGIN_S = 10.0  # for the communication thread to answer
_CLOSE_S = 5.0
_GIVE_UP_S = 0.5  # a failure must be told in time


class Session:
    """Runs programs on one rank; to open one is collective over a process group.

    Args:
        config: Says which transport, and how long a wait may be. All ranks' must be equal.
        group: Who takes part.
        elems: How many float32 values a step brings at most: a peer may be ahead by so much.
        threads: How many threads encode and decode; None for as many as an engine would have.
        lane: Where the programs' memory is, and in which order the device works on it; the CPU's
            if not given.
        failure: Why this rank can not take part after all, which the others are told.
        caller: The function that the user called, which an error names.

    Attributes:
        rank: This rank's place in the group.
        size: Number of ranks.
        transport: Carries the exchanges.
        lane: What was given.

    Raises:
        ConfigError: The ranks do not agree, or there is no such transport; on every rank.
        Timeout: Not all ranks open one.
        CompressaError: The failure that was given.
    """

    def __init__(
        self,
        config: Config,
        group: dist.ProcessGroup,
        elems: int,
        threads: int | None = 1,
        *,
        lane: Lane | None = None,
        failure: CompressaError | None = None,
        caller: str = "Session",
    ) -> None:
        self.lane = lane or Lane()
        self._deadline_s = config.exchange.deadline_s
        self._groups: list[dist.ProcessGroup] = []
        self._step = 0
        try:
            parameters = [ParameterInfo(0, "values", (elems,))]
            self._open(config, group, parameters, threads, failure, caller)
        except BaseException as error:
            process_groups.give_up(config, self._groups, error)
            raise

    def _open(
        self,
        config: Config,
        group: dist.ProcessGroup,
        parameters: Sequence[ParameterInfo],
        threads: int | None,
        failure: CompressaError | None,
        caller: str,
    ) -> None:
        obstacle = startup.obstacle(config, group.size())
        self._groups.append(process_groups.new_group(config, group, "gloo", caller, obstacle))
        self._control = startup.open_control(config, self._groups[0])
        with startup.opening(self._control, partial(self._control.close, _GIVE_UP_S)):
            self.rank, self.size = self._control.rank, self._control.size
            kind = self._agree_on_transport(config, group, parameters, failure)
            backend = TRANSPORTS[kind].backend
            self._groups.append(process_groups.new_group(config, group, backend, caller))
            failed = Late()
            self.transport = startup.open_transport(
                config, self._groups[1], self._control, parameters, failed, kind, self.lane
            )
            self._communication = Communication(
                self.transport,
                threads or startup.threads_of(self._control),
                self._deadline_s,
                self._control.verdict,
                _ignore,
                _ignore,
                self.lane,
            )
        doing = Doing(f"in {caller}", self._communication.waits)
        self._control.describe(doing.activity, self._deadline_s)
        failed.connect(self.fail)
        self._control.listen(self.fail)

    def _agree_on_transport(
        self,
        config: Config,
        group: dist.ProcessGroup,
        parameters: Sequence[ParameterInfo],
        failure: CompressaError | None,
    ) -> str:
        """Return which, when all ranks have said that they can and want the same."""
        kind = ""
        try:
            kind = startup.choose_transport(config, group, self.lane.device)
        except CompressaError as error:
            failure = failure or error
        text = None if failure is None else str(failure)
        own = startup.digest(config, text, parameters, kind)
        try:
            startup.agree(self._control, own, config.exchange.start_wait_s)
        finally:
            if failure is not None:
                raise failure
        return kind

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
        while True:  # every exchange of it has a deadline; how many there are is its own affair
            try:
                return future.result(self._deadline_s)
            except NotDone:
                self._check_communication()

    def _check_communication(self) -> None:
        answered = threading.Event()
        self._communication.post(answered.set)
        if not answered.wait(_MARGIN_S):
            raise Timeout((), f"rank {self.rank}: the communication thread does not answer")

    def run(self, program: Program[None]) -> None:
        """Run a program as one step, and wait for its end.

        Raises:
            CompressaError: It failed.
        """
        self._step += 1
        self.wait(self.start(program, step=self._step))

    def now_s(self) -> float:
        """Tell the time of `call_at`."""
        return time.monotonic()

    def call_at(self, time_s: float, event: Callable[[], None]) -> None:
        """Have a function called on the communication thread at a time, or soon after it."""
        self._communication.call_at(time_s, event)

    def fail(self, error: CompressaError) -> None:
        """End everything under way with an error, here and on all other ranks."""
        self._communication.fail(error)

    def agree(self, own: Mapping[str, Any]) -> None:
        """Compare what all ranks say, as JSON.

        Raises:
            ConfigError: They differ; on every rank, with the first difference.
        """
        texts = self.all_gather(json.dumps(own).encode(), "settings")
        settings = [json.loads(text) for text in texts]
        for rank, other in enumerate(settings):
            difference = first_difference(settings[0], other)
            if difference is not None:
                path, first, value = difference
                raise ConfigError(
                    f"the ranks differ in {path}: rank 0 has {first!r}, rank {rank} has {value!r}"
                )

    def serve(self, attach: Callable[[Reactor], None]) -> None:
        """Have the communication thread serve further sockets; `attach` is called on it."""
        self._communication.serve(attach)

    def all_gather(self, data: bytes, what: str) -> list[bytes]:
        """Bring every rank's bytes to every rank, over the control channel.

        Args:
            data: This rank's.
            what: What messages of errors call it.

        Raises:
            TransportError: Some rank did not call it in time, or is gone.
        """
        return self._control.all_gather(data, what, self._deadline_s)

    @property
    def hosts(self) -> int:
        """How many machines, or network namespaces, the ranks are on."""
        return len({place.network for place in self._control.places})

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.all_gather(b"here", "barrier")

    def slowest(self, seconds: float) -> float:
        """Return the largest number of all ranks."""
        return max(float(text) for text in self.all_gather(repr(seconds).encode(), "time"))

    def close(self) -> None:
        """End threads and connections. Ranks may close at different times."""
        begin_s = time.monotonic()
        try:
            self._communication.close(_CLOSE_S)
        finally:
            self._control.close(max(1.0, _CLOSE_S - (time.monotonic() - begin_s)))
        process_groups.release_groups(self._groups)


def _ignore(*_: Any) -> None:
    """Nothing to be told: what fails ends the program under way with its error."""
