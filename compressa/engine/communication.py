"""The communication thread: owns the driver, and so the order of launches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import partial
from typing import Any

from compressa.collectives.base import Compute
from compressa.engine.control.deferred_error import DeferredError
from compressa.engine.control.waits import Wait
from compressa.engine.device_stream import LACKS, DeviceStream, Mark, Ticket, lacking
from compressa.engine.driver import Carried, ComputeDone, Driver
from compressa.engine.inline import Inline
from compressa.engine.sharing.gate import Gate
from compressa.engine.task import Task, at
from compressa.errors import CompressaError, Timeout, TransportError
from compressa.kernels.threads import KernelThreads
from compressa.schedulers import Plan
from compressa.transports.base import Transport
from compressa.transports.reactor import Reactor

_TICK_S = 0.25
_PAUSE_S = 0.05
_SETTLE_S = 10.0
_END_S = 5.0  # for these threads to come to the end of what they are at

Computed = Callable[[Task, str, float, float], None]


class Communication:
    """Runs one driver on a thread of its own, and its computations on worker threads.

    Args:
        transport: Carries the exchanges; ended with this object.
        threads: Number of worker threads for encode and decode.
        deadline_s: Longest wait for an exchange.
        verdict: Called once, on the communication thread, with the first error; tells the other
            ranks, and returns the error that it amounts to.
        device_stream: What all these threads work on.
        inline: Whether programs run on the thread that starts them instead, each as far as it goes
            before `start` returns: for an early transport whose launches have a place among others
            of that thread.

    Attributes:
        post: Has a function called on the communication thread; from any thread. What that raises
            ends everything under way.
        begun: Called on a thread before it computes; None for nobody.
    """

    def __init__(
        self,
        transport: Transport,
        threads: int,
        deadline_s: float,
        verdict: Callable[[CompressaError], CompressaError],
        device_stream: DeviceStream,
        *,
        inline: bool = False,
    ) -> None:
        self._transport = transport
        self._inline = Inline(device_stream) if inline else None
        self._verdict = verdict
        self._failed = DeferredError()
        self._computed: Computed = _ignore
        self.begun: Callable[[], None] | None = None
        self._device_stream = device_stream
        self._reactor = Reactor()
        self.post = self._reactor.post
        self._closing = False
        self._look_s = time.perf_counter() + _TICK_S  # when to look at deadlines
        self._threads = threads
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix="compressa-codec", initializer=self._enlist
        )
        self._working: list[Future[None]] = []  # not all that have ended are out yet
        # What idles helps with a large unit.
        self._kernel_threads = KernelThreads(self._pool, threads)
        self._driver = Driver(
            transport,
            self._compute,
            self._inline.run if self._inline else self.post,
            time.perf_counter,
            deadline_s,
            device_stream,
        )
        self._gate: Gate | None = None
        self._reason: CompressaError | None = None
        self._error: CompressaError | None = None
        self._settled = threading.Event()
        transport.attach(self._reactor)
        self._thread = threading.Thread(target=self._run, name="compressa-comm", daemon=True)
        self._thread.start()
        if device_stream.asynchronous:  # a thread that began beside a user's capture would break it
            self.idle(_END_S)

    def observe(self, carried: Carried, computed: Computed) -> None:
        """Have functions called with what was done; before the first program.

        Args:
            carried: Called with each finished exchange; see `Driver.observe`.
            computed: Called, on the thread that computes, with each computation's task, stage,
                start (on `time.perf_counter`) and duration in seconds.
        """
        self._computed = computed
        self._driver.observe(carried)

    def when_failed(self, failed: Callable[[CompressaError], None]) -> None:
        """Have a function called once with the verdict, when nothing is under way any more.

        It is called on the communication thread; or now, if everything has been ended already.

        Args:
            failed: Must block nowhere.
        """
        self._failed.connect(failed)

    def pass_through(self, gate: Gate | None) -> None:
        """Have exchanges begin when a gate lets them, if there is one; before the first exchange.

        Args:
            gate: Owned from now on, and closed with this object; None to hold nothing back.
        """
        self._gate = gate
        self._driver.pass_through(gate)

    @property
    def launches(self) -> bool:
        """Whether a GPU is given all that there is to do, exchanges included."""
        own = self._transport.early or self._transport.size == 1
        return own and self._device_stream.asynchronous

    @property
    def gated(self) -> bool:
        """Whether a gate says when exchanges begin."""
        return self._gate is not None

    def waits(self) -> list[Wait]:
        """Return what exchanges under way wait for, the longest wait first; from any thread."""
        return self._driver.waits()

    def step_over(self) -> None:
        """Note that all of a step has been exchanged: a gate lets others go; on this thread."""
        if self._gate is not None:
            self._gate.over()

    def call_at(self, time_s: float, event: Callable[[], None]) -> None:
        """Have a function called on the communication thread at a time; from any thread.

        Args:
            time_s: When, of `time.monotonic`; soon if that has passed.
            event: Called once, and not if the thread ends before. What it raises ends everything
                under way.
        """
        self.post(partial(self._reactor.call_at, time_s, event))

    def serve(self, attach: Callable[[Reactor], None]) -> None:
        """Have the reactor serve further sockets; from any thread.

        Args:
            attach: Called with the reactor, on its thread.
        """
        self.post(partial(attach, self._reactor))

    def wait(self, tickets: Sequence[Ticket]) -> list[Mark]:
        """Wait for tickets, and return their marks, in their order.

        Meanwhile, and not while the caller computes, its core is free. Every exchange has its
        deadline, so the wait ends.

        Raises:
            CompressaError: The verdict, if it came before one of them was done.
        """
        self._reactor.core_free = True
        try:
            return [ticket.result() for ticket in tickets]
        finally:
            self._reactor.core_free = False

    def follow(self, plan: Plan, ordered: Sequence[tuple[int, int]]) -> None:
        """Follow a plan from its first step on; from any thread.

        Args:
            plan: The total order of (unit, stage).
            ordered: Those that all ranks launch in one order.
        """
        self._drive(partial(self._driver.follow, plan, ordered))

    def start(self, task: Task) -> None:
        """Begin a program; from any thread, and without waiting.

        Args:
            task: Its `finished` is called on the communication thread, with None or the error; or,
                where programs run inline, on the one that starts the last that it waits for.
        """
        task.idle_since_s = time.perf_counter()
        self._drive(partial(self._start, task))

    def _drive(self, call: Callable[[], None]) -> None:
        """Have the driver called on the thread that drives it."""
        if self._inline is None:
            self.post(call)
            return
        try:
            self._inline.run(call)
        except Exception as error:  # as on the communication thread
            self.fail(wrapped(error))

    def fail(self, error: CompressaError) -> None:
        """End everything under way with an error; only the first one counts.

        From any thread, and without waiting: `when_failed` tells the verdict.
        """
        self._reason = self._reason or error  # at once: what it ends may look like another fault
        self.post(partial(self._fail, error))

    def check_received(self, *, wait: bool = False) -> None:
        """Look at what the device has found by now of what arrived; from any thread.

        Args:
            wait: Until it has looked at everything.

        Raises:
            PayloadError: Something is not what is due; everything under way is ended.
            CompressaError: Something is not what is due because everything was ended before.
        """
        try:
            self._device_stream.check_received(wait=wait)
        except CompressaError as error:
            if self._reason is not None and self._settled.wait(_SETTLE_S):
                raise self._error or error from None
            self.fail(error)
            raise

    def idle(self, timeout_s: float) -> bool:
        """Wait until no worker thread computes anything.

        Args:
            timeout_s: Longest wait, in seconds.

        Returns:
            Whether that is so in time.
        """
        meeting = threading.Barrier(self._threads + 1)
        for _ in range(self._threads):  # who comes has finished what it did before
            self._pool.submit(_meet, meeting, timeout_s)
        return _meet(meeting, timeout_s)

    def close(self, wait_s: float) -> None:
        """End the threads and the transport; not from one of these threads.

        Args:
            wait_s: Longest wait for the other ranks to end theirs, in seconds.

        Raises:
            TransportError: Some of it does not end; what it uses must be left as it is.
        """
        self.post(self._end)
        self._thread.join(_END_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._gate is not None:
            self._gate.close()
        if self._thread.is_alive():
            raise TransportError(
                f"the communication thread has not ended within {_END_S:g} s: it waits in the "
                "network library; its connections stay until the process ends"
            )
        late = self._rest()
        try:
            self._transport.close(wait_s)
        finally:
            self._reactor.close()
        if late:
            raise TransportError(
                f"{late} of {self._threads} worker threads still compute after {_END_S:g} s; what "
                "they write to must be left as it is until they end"
            )

    def _rest(self) -> int:
        """Wait until no worker thread computes for a task; return how many still do."""
        begun = [future for future in self._working if not future.cancel()]
        return len(wait(begun, _END_S).not_done)

    def _enlist(self) -> None:
        self._device_stream.adopt()
        self._kernel_threads.enlist()

    def _run(self) -> None:
        self._device_stream.adopt()
        while not self._closing:
            try:
                left_s = self._look_s - time.perf_counter()
                if left_s > 0:
                    self._reactor.run_once(left_s)
                else:
                    self._check()
            except Exception as error:  # whatever it is: nobody may wait for this thread in vain
                if self._error is not None:
                    time.sleep(_PAUSE_S)  # a socket that goes on failing must not fill a core
                self._fail(wrapped(error))

    def _end(self) -> None:
        self._closing = True

    def _start(self, task: Task) -> None:
        if self._error is not None:
            task.finished(self._error)
        else:
            self._driver.start(task)

    def _check(self) -> None:
        """Look at what nothing wakes this thread for: deadlines, and what the device has found."""
        now_s = time.perf_counter()  # before it is asked what is to be excused until then
        away_s = self._reactor.away_s()  # what came meanwhile lies unread
        self._look_s = now_s + _TICK_S
        if self._inline is None:  # else the transport knows alone, and the driver is another's
            self._driver.excuse(away_s)
            error = self._driver.expired(now_s)
            if error is not None:
                self._fail(error)
            if not self._device_stream.asynchronous:
                self._look_s = self._driver.due_s()
        self._device_stream.check_received()

    def _fail(self, error: CompressaError) -> None:
        if self._error is not None:
            return
        # The others are told who is to blame before this rank's goodbye can look like the cause.
        self._error = self._verdict(self._reason or error)
        if not isinstance(self._error, Timeout):  # which says it itself
            self._error.locate(self._driver.position)
        try:
            # Nothing may write to gradients any more when their owners hear of it. Whoever waits
            # in the transport goes on, and no longer keeps the driver.
            self._transport.fail(self._error)
            self._rest()
        finally:  # and they must hear of it, whatever became of the transport
            with self._inline.alone() if self._inline else nullcontext():
                self._driver.fail(self._error)
            self._failed(self._error)
            self._settled.set()

    def _compute(self, task: Task, operation: Compute, done: ComputeDone) -> None:
        enqueues = self._device_stream.asynchronous and not task.waits
        if operation.quick or enqueues or self._inline is not None:
            done(*self._work(task, operation))
        else:
            self._working = [future for future in self._working if not future.done()]
            work = self._pool.submit(lambda: self.post(partial(done, *self._work(task, operation))))
            self._working.append(work)

    def _work(self, task: Task, operation: Compute) -> tuple[Any, CompressaError | None]:
        """Do it and note the time; return its result, or its failure."""
        if self.begun is not None:
            self.begun()
        started_s = time.perf_counter()
        value: Any = None
        failure: CompressaError | None = None
        what = f"the unit {task.name}"
        try:
            checking = self._device_stream.checking(f"{what} in step {task.step}")
            with at(self._device_stream, task), checking:
                value = operation.work()
        except LACKS as error:
            failure = lacking(error, what)
            failure.__cause__ = error
        except Exception as error:
            failure = wrapped(error)
        ended_s = time.perf_counter()
        self._computed(task, operation.stage, started_s, ended_s - started_s)
        task.idle_since_s = ended_s
        return value, failure


def _ignore(*_: object) -> None:
    """Nobody observes."""


def _meet(meeting: threading.Barrier, timeout_s: float) -> bool:
    try:
        meeting.wait(timeout_s)
    except threading.BrokenBarrierError:
        return False
    return True


def wrapped(error: BaseException) -> CompressaError:
    """Return an error itself if it is of this package, else as the cause of a `CompressaError`."""
    if isinstance(error, CompressaError):
        return error
    known = CompressaError(f"an internal error ended the communication: {error!r}")
    known.__cause__ = error
    return known
