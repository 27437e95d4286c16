"""The engine: named gradients in, their mean over the ranks out.

`Engine.submit` is the single entry. It only notes what arrived; a unit whose gradients are all
there goes to the communication thread, which drives its program; worker threads encode and decode,
but for what a GPU is only given. The future is done when each unit of its gradients is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import torch

from compressa.aggregators.base import State, StepContext
from compressa.collectives.base import Operation, Program
from compressa.collectives.choice import Costs
from compressa.compressor import Compressor
from compressa.engine.arrivals import Arrivals
from compressa.engine.communication import wrapped
from compressa.engine.control.waits import OUTSIDE, Doing
from compressa.engine.device_stream import Mark, Ticket
from compressa.engine.measuring.profiler import Ledger
from compressa.engine.measuring.stats import Stats
from compressa.engine.measuring.timeline import Timeline
from compressa.engine.session import CLOSE_S, Session
from compressa.engine.sharing.link_sharing import gate_for
from compressa.engine.start.startup import agree_on_order, sums_of
from compressa.engine.task import Task
from compressa.engine.undo import Undo
from compressa.engine.units.bundles import Bundle, Bundles
from compressa.engine.units.phase import Member, Phase
from compressa.engine.units.phases import Phases
from compressa.engine.units.planning import Planning
from compressa.engine.units.unit_runtime import UnitRuntime, give_back
from compressa.engine.units.units import UnitSizes
from compressa.engine.units.world import world_of
from compressa.errors import CompressaError, StateError
from compressa.parameters import ParameterInfo
from compressa.tracing import Tracer


class Engine:
    """Combines gradients over the ranks of a session.

    Args:
        session: What is open between the ranks; the engine owns and closes it, once it is made.
        parameters: What will be submitted, in the model's order; the same on every rank.
        compressors: By parameter name, from the configuration's rules.

    Attributes:
        session: As given.
        parameters: As given.
        transport: The session's.
        state: This rank's state.
        step: The step that began last.
        device_stream: The session's.
        launched: Whether a GPU is given all that there is to do, exchanges included.
        planning: What makes plans, and knows the one in force.
        undo: What takes back a step that failed; None unless `engine.recover` asks for it.
        interrupted: Whether the step that began last was not completed.
        tracer: What records where time goes.

    Raises:
        BackendUnavailable: There is not enough memory for state.
        ConfigError: The ranks plan in another order; on every rank.
        TransportError: A rank is lost, or does not come.
    """

    def __init__(
        self,
        session: Session,
        parameters: Sequence[ParameterInfo],
        compressors: Mapping[str, Compressor],
    ) -> None:
        self.session = session
        self.parameters = tuple(parameters)
        self.device_stream, self.transport = session.device_stream, session.transport
        self.launched = session.communication.launches
        self.state, self.step = State(self.device_stream.device), 0
        self._config = config = session.config
        self._communication = session.communication
        self._sums = sums_of(config, session.transport, session.control, parameters)
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._error: CompressaError | None = None  # of every call from now on
        self._failure: CompressaError | None = None
        self._arrivals = Arrivals({p.name: p.shape for p in parameters})
        self._context = StepContext(0)
        self._rollback: Sequence[UnitRuntime] = ()  # under loss scaling
        self.undo = Undo(self.state) if config.engine.recover else None
        self.interrupted, self._expected = False, 0
        self.planning = Planning(config, session.control, lambda *of: self._timeline.decided(*of))
        self.tracer = Tracer(session.rank, session.size)
        self._timeline = Timeline(self.tracer, lambda: self.planning.profiler.needs_s)
        self._communication.observe(self._carried, self._timed)
        self._communication.pass_through(gate_for(config, session.control, self._communication))
        self._communication.when_failed(self._broke)
        self._phases, self._phase = self._first_phase(compressors)
        self._doing = Doing(f"{OUTSIDE}, before step 0", self._communication.waits)
        session.describe(self._doing.activity)

    def submit(
        self,
        gradients: Mapping[str, torch.Tensor],
        *,
        step: int,
        loss_scale: float | None = None,
        hold_zeros: bool = False,
    ) -> Ticket:
        """Combine some of a step's gradients over the ranks, in place; does not wait for them.

        Args:
            gradients: By parameter name, each of its parameter's shape and dtype, on the engine's
                device. They must stay untouched until the future is done.
            step: Optimizer step; all its gradients must be submitted before the next begins.
            loss_scale: What the gradients were multiplied by; None without loss scaling.
            hold_zeros: Keep the residual of a parameter back whose gradient is all zero.

        Returns:
            A future for `wait`. On a GPU it is done when all work is enqueued, and marks its end.

        Raises:
            CompressaError: The engine has failed earlier; the same error again.
            StateError: The last step is not complete, or a gradient is not as it is due.
        """
        self.device_stream.check(gradients)  # first: it calls nothing that breaks a capture
        if self._error is not None or self.device_stream.asynchronous:
            self.check()
        ticket: Ticket = Future()
        mark = self.device_stream.mark(gradients.values())
        with self._lock:
            if self._error is not None:  # since then, and nobody would end the ticket
                raise self._error
            if step != self._context.step or not self._arrivals.missing:
                self._begin(step, loss_scale, hold_zeros, mark)
            complete = self._arrivals.arrive(gradients, mark, ticket)
            if self.tracer.on:
                self._timeline.arrived(step, gradients.keys(), complete)
            self.planning.profiler.arrived(gradients)
            self.planning.profiler.ready(complete)
            ready = list(map(self._task, self._bundles.complete(complete)))
        if not ready and not self._arrivals.owes(ticket):
            ticket.set_result(None)
        for task in ready:
            self._communication.start(task)
        return ticket

    def awaited(self) -> tuple[Mapping[str, Sequence[int]], dict[int, int]]:
        """Return what the step that began last still waits for, as it is now.

        Returns:
            By parameter name, the numbers of what goes together; by number, how many gradients
            are missing.
        """
        with self._lock:
            return self._bundles.awaited(self._arrivals.missing)

    @property
    def complete(self) -> bool:
        """Whether all gradients of the step that began last have been submitted."""
        return not self._arrivals.missing

    def check(self) -> None:
        """Raise the error that ended this engine, or ends it now: an arrival that is not due.

        From any thread, and without waiting; the same `CompressaError` in every call.
        """
        if self._error is not None:
            raise self._error
        if self.device_stream.asynchronous:
            self._communication.check_received()

    def wait(self, tickets: Sequence[Ticket], name: str = "all gradients") -> None:
        """Block until all are done; on one thread at a time.

        On a GPU, what the caller enqueues next comes after these, and not after what follows them.

        Args:
            tickets: What `submit` has returned.
            name: For what, in a trace.

        Raises:
            CompressaError: The engine has failed; the same error on every rank.
        """
        started_s = time.perf_counter()
        self._doing.begin(f"in step {self.step}", blocked=True)
        if self.tracer.on:
            self._timeline.begin_wait()
        try:
            self.device_stream.after(self._communication.wait(tickets))
        finally:
            self._doing.begin(f"{OUTSIDE}, after step {self.step}")
        seconds = time.perf_counter() - started_s
        self._ledger.exposed_s += seconds
        self.planning.profiler.waited(seconds)
        if self.tracer.on:
            self._timeline.waited(name, self.step, started_s, seconds)

    def stats(self) -> Stats:
        """Return what was measured since the start, on this rank; from any thread."""
        traffic = self.transport.traffic
        return self._ledger.snapshot(traffic.sent_bytes, traffic.messages, self.planning.overlap)

    @property
    def compressors(self) -> Mapping[str, Compressor]:
        """By parameter name, with all that was switched."""
        return self._phases.compressors

    def settle(self) -> None:
        """Give back what a skipped step sent; residuals are final afterwards.

        Raises:
            CompressaError: The engine has failed: the last step has left no state to go on from.
        """
        if self._failure is not None:
            raise self._failure
        self._communication.check_received(wait=True)
        with self._lock:
            self._give_back()
        self.device_stream.join()

    def attempt(self, compressors: Mapping[str, Compressor]) -> None:
        """Raise what would go wrong with other compressors; see `Phases.attempt`."""
        self._phases.attempt(compressors)

    def switch(self, compressors: Mapping[str, Compressor], step: int) -> None:
        """Have other compressors in force from a step on, the same on every rank.

        Residuals are keyed by parameter, and so are handed over; what the new compressors do not
        keep is added to the first gradient. Other state that they do not keep is dropped.

        Args:
            compressors: By parameter name.
            step: The first step that they are for; it must not have begun.

        Raises:
            StateError: The step has begun.
        """
        with self._lock:
            if step < self._expected:
                raise StateError(f"step {step} can not have other compressors: it has begun")
            self._phases.switch(compressors, step)
            self._phase.end(step)

    def succeed(self, old: Engine) -> None:
        """Go on with the trace, and a switch to come, of an engine that was retired."""
        self.tracer = self._timeline.tracer = old.tracer
        self._phases.succeed(old._phases)

    def adopt(self, costs: Costs | None) -> None:
        """Choose algorithms by these figures from the next step on, alike on every rank."""
        self._sums.costs = costs
        self._expected = -1  # whichever step is next is planned anew

    def retire(self) -> None:
        """Have the state as it was before the step that is not complete, if one is.

        For an engine that has failed. Waits for worker threads, for as long as a start may take.

        Raises:
            StateError: A worker thread goes on for too long.
        """
        if not self._communication.idle(self._config.exchange.start_wait_s):
            raise StateError("a unit is still being encoded: the state can not be taken over")
        with self._lock:
            self.interrupted |= self._arrivals.open
            if not self.interrupted:
                self._give_back()
            elif self.undo is not None:
                self.undo.restore()

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Close the session; every later call raises an error.

        Args:
            wait_s: As `Session.close` takes it.

        Raises:
            TransportError: As `Session.close`.
        """
        if self._error is None:
            self._error = StateError(
                "this handle is closed; open another engine to go on, or, to train a model, wrap "
                "the network in a new DistributedDataParallel and register again"
            )
        self.session.close(wait_s)

    def _begin(self, step: int, loss_scale: float | None, hold_zeros: bool, mark: Mark) -> None:
        if self._arrivals.open:
            raise StateError(
                f"step {step} began before every gradient of step {self._context.step} was "
                "combined; submit all parameters of a step, and wait for them, first"
            )
        if self.tracer.recording is not None:
            self.tracer.begin_step(step)
        if self.tracer.on is not self._timeline.watched:
            self._timeline.watch(self.transport)
            self._communication.begun = self._timeline.begun if self.tracer.on else None
        self.device_stream.follow(mark)  # the caller may have written to the state
        self._give_back()
        if step != self._expected or step >= self._phase.end_step:
            self._phase = self._enter(self._phases, step)
        if self.planning.replans:
            self._replan(step)
        self.planning.profiler.begin()
        self._expected = step + 1
        self._context = StepContext(step, self.transport.epoch, loss_scale or 1.0, hold_zeros)
        self._arrivals.begin(self._phase)
        self._bundles.begin(self.planning.joining)
        self._rollback = () if loss_scale is None else self._bundles.running
        self._ledger.steps += 1
        self.step = step
        self._doing.begin(f"computing step {step}")
        if self.undo is not None:
            with self.device_stream.current():
                self.undo.keep(step)
        self.device_stream.catch_up()

    def _replan(self, step: int) -> None:
        """Follow another plan, if there is one from this step on."""
        try:
            step_plan = self.planning.begin(step)
        except CompressaError as error:
            self._communication.fail(error)
            raise
        if step_plan is not None:
            self._communication.follow(*step_plan)

    def _give_back(self) -> None:
        """If the last step overflowed under loss scaling, its optimizer step was skipped."""
        units, self._rollback = self._rollback, ()
        if units:
            with self.device_stream.current():
                give_back(units, self._context)

    def _first_phase(self, compressors: Mapping[str, Compressor]) -> tuple[Phases, Phase]:
        sizes = UnitSizes.of(self._config, launched=self.launched)
        world = world_of(self._config, self.session.rank, self.session.size, self.state)
        phases = Phases(self.parameters, compressors, sizes, world, self._sums, self.device_stream)
        return phases, self._enter(phases, 0)

    def _enter(self, phases: Phases, step: int) -> Phase:
        """Begin a phase, or a stretch of steps that does not follow on the last one."""
        phase = phases.enter(step)
        step_plan = self.planning.enter(phase, step)
        agree_on_order(self.session.all_gather, step, step_plan.launches)
        self._communication.follow(*step_plan)
        self._timeline.enter(phase)
        self._bundles = Bundles(phase, self.device_stream)
        return phase

    def _task(self, bundle: Bundle) -> Task:
        program = bundle.program(list(map(self._program, bundle.members)))
        step, finished = self._context.step, partial(self._finished, bundle.numbers)
        waits = bundle.waits or self._context.hold_zeros  # for whether gradients are zero
        return Task(bundle.numbers[0], bundle.name, step, program, finished, waits=waits)

    def _program(self, member: Member) -> Program[None]:
        gradients, marks = self._arrivals.take(member.numbers)
        unit, before = member.unit, partial(self.device_stream.after, marks)
        self._ledger.add_unit(unit.label, unit.dense_bytes, unit.payload_bytes)
        context, check = self._context, bool(self._rollback)
        return unit.program(gradients, context, member.carriers, check_finite=check, before=before)

    def _finished(self, units: Sequence[int], error: BaseException | None) -> None:
        """On the communication thread: units that go together are done, or failed."""
        if error is not None:
            self._communication.fail(wrapped(error))
            return
        with self._lock:
            done = self._arrivals.done(units)
            over = not self._arrivals.open
        if over:
            self._communication.step_over()
        for ticket in done:
            ticket.set_result(self.device_stream.note())

    def _broke(self, error: CompressaError) -> None:
        """On the communication thread: nothing more will be combined."""
        self._error = self._failure = error
        with self._lock:
            self.interrupted = self._arrivals.open
            tickets = self._arrivals.give_up()
        for ticket in tickets:
            ticket.set_exception(error)

    def _timed(self, task: Task, stage: str, started_s: float, seconds: float) -> None:
        self._ledger.add_time(self._phase.units[task.unit].label, stage, seconds)
        self.planning.profiler.computed(self._bundles.of(task.unit).numbers, stage, seconds)
        if self.tracer.on:
            self._timeline.computed(task, stage, started_s, seconds)

    def _carried(self, task: Task, operation: Operation, launched_s: float, seconds: float) -> None:
        self._ledger.add_time(self._phase.units[task.unit].label, "wire", seconds)
        if self.tracer.on:
            self._timeline.carried(task, operation, launched_s, seconds)
