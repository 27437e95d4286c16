"""Session: one rank's control channel, transport and communication thread, without a model.

An `Engine` is built on one. What brings bytes from rank to rank outside of a training step
(parameters, keys and values, benchmarks) runs its programs here: the same driver, deadlines and
errors as gradients have.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from typing import Any, Self

import torch.distributed as dist

from compressa.collectives.base import Program
from compressa.config import Config
from compressa.engine.calls import run_here
from compressa.engine.communication import Communication
from compressa.engine.control.control import Control
from compressa.engine.control.waits import Activity, Doing
from compressa.engine.device_stream import DeviceStream
from compressa.engine.start import process_groups, startup
from compressa.engine.start.link_file import AgreedLink
from compressa.engine.task import Task
from compressa.errors import CompressaError, StateError, Timeout, TransportError
from compressa.schedulers import Plan, Transfer
from compressa.transports.base import Transport
from compressa.transports.reactor import Reactor

CLOSE_S = 5.0
GIVE_UP_S = 0.5  # a failure must be told in time; threads that wait for the lost end by themselves
_MARGIN_S = 10.0  # for the communication thread to answer


class Session:
    """Runs programs on one rank, over channels that are open; see `open_session`.

    As a context manager it closes itself; after an error, as `closed_on_error` does.

    Args:
        config: Settings.
        transport: Carries the exchanges; closed with the session.
        control: Carries verdicts and small messages; closed with the session. None in a world of
            one.
        device_stream: Where the programs' memory is, and in which order the device works on it; the
            CPU's if not given.
        threads: How many threads encode and decode; if not given, as many as the configuration
            says, or as keep the device or this rank's cores busy.
        groups: Process groups that were made for it, and are released after it.
        in_stream_order: Whether programs run on the threads that start them; see `Communication`.
        caller: The function that the user called, which messages name.

    Attributes:
        config: As given.
        rank: This rank.
        size: Number of ranks.
        transport: As given.
        control: As given.
        device_stream: As given.
        threads: How many threads encode and decode.
        communication: The communication thread.
    """

    def __init__(
        self,
        config: Config,
        transport: Transport,
        control: Control | None = None,
        *,
        device_stream: DeviceStream | None = None,
        threads: int | None = None,
        groups: Sequence[dist.ProcessGroup] = (),
        in_stream_order: bool = False,
        caller: str = "Session",
    ) -> None:
        self.config = config
        self.rank, self.size = transport.rank, transport.size
        self.transport = transport
        self.control = control
        self.device_stream = device_stream or DeviceStream()
        wanted = threads or config.engine.threads or self.device_stream.threads
        self.threads = wanted or startup.threads_of(control)
        self._groups = list(groups)
        self._deadline_s = config.exchange.deadline_s
        self._step = 0
        self._closed = False
        verdict = _own if control is None else control.verdict
        given = transport, self.threads, self._deadline_s, verdict, self.device_stream
        self.communication = Communication(*given, inline=in_stream_order)
        self.describe(Doing(f"in {caller}", self.communication.waits).activity)
        if control is not None:
            control.listen(self.fail)

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it."""
        if error is None:
            self.close()
            return
        with self.closed_on_error():
            raise error

    def closed_on_error(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that closes the session if it is left by an error.

        If the network has failed, all ranks raise one verdict; else the error itself.
        """
        return given_up_on_error(self.config, self._groups, self.control, self._end)

    def keep(self, group: dist.ProcessGroup) -> None:
        """Release a further process group when the session is closed, with those made for it."""
        self._groups.append(group)

    def describe(self, activity: Callable[[], Activity]) -> None:
        """Have a function tell other ranks what this one is doing.

        Args:
            activity: Called from any thread; must block nowhere.
        """
        if self.control is not None:
            self.control.describe(activity, self._deadline_s)

    def follow(self, transfers: Sequence[Transfer], ordered: Sequence[int]) -> None:
        """Plan the programs to come: their exchanges, and which stages are launched in order.

        Args:
            transfers: Of one program, in the order of their urgency; all of unit 0.
            ordered: The stages that all ranks launch in one order.
        """
        order = tuple((transfer.unit, transfer.stage) for transfer in transfers)
        plan = Plan(order, self._step + 1)
        self.communication.follow(plan, [(0, stage) for stage in ordered])

    def start(
        self,
        program: Program[None],
        *,
        step: int,
        unit: int = 0,
        stage: int = 0,
        name: str = "session",
    ) -> Future[None]:
        """Begin a program, beside others that are under way; from any thread.

        Args:
            program: All ranks that it exchanges with must begin its counterpart.
            step: With `unit`, what tells its messages from those of others.
            unit: As `step`.
            stage: Number of its first exchange.
            name: What messages of errors call it.

        Returns:
            A future for `wait`, done when the program has ended.
        """
        done: Future[None] = Future()

        def finished(error: BaseException | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.communication.start(Task(unit, name, step, program, finished, stage, ahead=False))
        return done

    def wait(self, future: Future[None]) -> None:
        """Wait for the end of a program, for as long as its exchanges take.

        Args:
            future: What `start` has returned.

        Raises:
            CompressaError: It failed; the verdict, if the network has.
            Timeout: The communication thread answers nothing.
        """
        while True:  # every exchange of it has a deadline; how many there are is its own affair
            try:
                return future.result(self._deadline_s)
            except NotDone:
                self._check_communication()

    def _check_communication(self) -> None:
        answered = threading.Event()
        self.communication.post(answered.set)
        if not answered.wait(_MARGIN_S):
            raise Timeout((), f"rank {self.rank}: the communication thread does not answer")

    def run(self, program: Program[None]) -> None:
        """Run a program as the next step, and wait for its end; on one thread at a time.

        Args:
            program: All ranks must run its counterpart.

        Raises:
            CompressaError: It failed.
        """
        self._step += 1
        stage: int = 0
        rest: Program[None] | None = program
        if not self.communication.gated:
            stage, rest = run_here(program, self.transport, self._step)
        if rest is not None:
            self.wait(self.start(rest, step=self._step, stage=stage))

    def now_s(self) -> float:
        """Return the time of `call_at`, in seconds."""
        return time.monotonic()

    def call_at(self, time_s: float, event: Callable[[], None]) -> None:
        """See `Communication.call_at`; the time is that of `now_s`."""
        self.communication.call_at(time_s, event)

    def fail(self, error: CompressaError) -> None:
        """End everything under way, and all that comes, with an error, here and on all other ranks.

        From any thread; only the first error counts.
        """
        self.communication.fail(error)

    def serve(self, attach: Callable[[Reactor], None]) -> None:
        """Have the communication thread serve further sockets; from any thread.

        Args:
            attach: Called with the reactor, on that thread.
        """
        self.communication.serve(attach)

    def agree(self, own: Mapping[str, Any], of: str = "") -> None:
        """Compare what all ranks say, as JSON; within the time of a start. Collective.

        Args:
            own: What this rank says.
            of: Whose settings these are, for messages.

        Raises:
            ConfigError: They differ; on every rank, with the first difference.
            TransportError: Some rank did not call it in time, or is gone.
        """
        whose = f"{of}'s " if of else ""
        text, deadline_s = json.dumps(own).encode(), self.config.exchange.start_wait_s
        texts = self.all_gather(text, f"{whose}settings", deadline_s)
        startup.check_alike([json.loads(text) for text in texts], whose, "give all ranks the same")

    def all_gather(self, data: bytes, what: str, deadline_s: float | None = None) -> list[bytes]:
        """Bring every rank's bytes to every rank, over the control channel. Collective.

        If a rank gives up, only this call has failed: nobody is to blame yet.

        Args:
            data: This rank's.
            what: What messages of errors call it; calls of one name belong together.
            deadline_s: Longest wait; the configuration's if not given.

        Returns:
            By rank, its bytes.

        Raises:
            TransportError: Some rank did not call it in time, or is gone.
        """
        if self.control is None:
            return [data]
        return self.control.all_gather(data, what, deadline_s or self._deadline_s)

    def call_on_all(self, what: str, work: Callable[[], str]) -> list[str]:
        """Do something on every rank, or on none; return what each rank's returned. Collective.

        Args:
            what: The name of the call, for messages and for ranks that are in another one.
            work: Done on this rank, in this call; may raise anything.

        Returns:
            By rank, its text.

        Raises:
            StateError: It failed on some rank; on every rank, with the first one's reason.
            CompressaError: It failed on this rank, with that error.
            TransportError: A rank is lost, or does not come.
        """
        own: dict[str, str | None] = {"error": None, "value": None}
        failure: Exception | None = None
        try:
            own["value"] = work()
        except Exception as error:  # the others must not wait for a rank that stumbled
            failure, own["error"] = error, str(error) or repr(error)
        texts = self.all_gather(json.dumps(own).encode(), what)
        if isinstance(failure, CompressaError):
            raise failure
        for rank, answer in enumerate(map(json.loads, texts)):
            if answer["error"] is not None:
                raise StateError(f"rank {rank}: {answer['error']}") from failure
        return [json.loads(answer)["value"] for answer in texts]

    @property
    def link(self) -> AgreedLink:
        """What is known of the network: what `exchange.link` says on rank 0, for all ranks."""
        return AgreedLink() if self.control is None else self.control.link

    @property
    def hosts(self) -> int:
        """How many machines, or network namespaces, the ranks are on; 1 in a world of one."""
        hosts = [] if self.control is None else self.control.hosts
        return max(1, len({host.network for host in hosts}))

    def barrier(self) -> None:
        """Wait for all ranks, for as long as `exchange.deadline_s`. Collective.

        Raises:
            TransportError: Some rank did not call it in time, or is gone.
        """
        self.all_gather(b"here", "barrier")

    def slowest(self, seconds: float) -> float:
        """Return the largest number of seconds of all ranks. Collective.

        Raises:
            TransportError: Some rank did not call it in time, or is gone.
        """
        return max(float(text) for text in self.all_gather(repr(seconds).encode(), "time"))

    def close(self, wait_s: float = CLOSE_S) -> None:
        """End threads and connections. Ranks may close at different times; may be called again.

        Threads that wait for lost ranks in the network library are waited for `wait_s`, and may
        end later.

        Args:
            wait_s: Longest wait for the other ranks' goodbyes, in seconds.

        Raises:
            TransportError: The network library does not let go; what it holds stays.
        """
        try:
            self._end(wait_s)
        finally:
            process_groups.release_groups(self._groups)

    def _end(self, wait_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        end_s = time.monotonic() + wait_s
        try:
            self.communication.close(wait_s)
        finally:
            if self.control is not None:
                self.control.close(max(0.0, end_s - time.monotonic()))


@contextlib.contextmanager
def given_up_on_error(
    config: Config,
    groups: list[dist.ProcessGroup],
    control: Control | None = None,
    close: Callable[[float], None] = lambda wait_s: None,
) -> Iterator[None]:
    """Close what has been opened if what is done meanwhile fails.

    If the network has, all raise one verdict: a rank that closed without a word would seem to be
    the cause to those who wait for longer.

    Args:
        config: Settings.
        groups: What was made, and is given back.
        control: The control channel, if it is open.
        close: Closes it, and all else, within a time in seconds.

    Raises:
        TransportError: The network has failed, which all ranks raise; any other error as it was.
    """
    try:
        yield
    except BaseException as error:
        told: BaseException = error
        if control is not None and isinstance(error, TransportError):
            told = control.verdict(error)
        try:
            close(GIVE_UP_S)
        finally:
            process_groups.give_up(config, groups, error, met=control is not None)
        if told is error:
            raise
        raise told from error


def _own(error: CompressaError) -> CompressaError:
    """The verdict in a world of one."""
    return error
