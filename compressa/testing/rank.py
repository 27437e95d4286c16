"""LoopbackRank: one rank of a `LoopbackWorld`, from gradients to means.

It does what the engine does, without threads: computations run where they are asked for, and
everything that comes later is an event on the virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from compressa.aggregators.base import State, StepContext, World
from compressa.collectives.base import Compute
from compressa.compressor import Compressor
from compressa.config import Exchange
from compressa.engine.device_stream import CudaDeviceStream, DeviceStream
from compressa.engine.driver import ComputeDone, Driver
from compressa.engine.task import Task, at
from compressa.engine.units.phase import Phase, StepPlan
from compressa.engine.units.sums import Sums
from compressa.engine.units.units import UnitSizes
from compressa.errors import CompressaError
from compressa.parameters import ParameterInfo
from compressa.transports.base import Transport
from compressa.transports.loopback import LoopbackTransport, VirtualClock
from compressa.transports.staged import Staged, When
from compressa.transports.watcher import Callback

Gradients = dict[str, torch.Tensor]
CPU_STREAM = DeviceStream()


class Rules(NamedTuple):
    """What is the same on every rank."""

    parameters: tuple[ParameterInfo, ...]
    compressors: Mapping[str, Compressor]
    exchange: Exchange
    sizes: UnitSizes
    policy: str
    seed: int
    deadline_s: float
    device: torch.device
    hosts: str
    replan: Callable[[int, StepPlan], StepPlan]


class LoopbackRank:
    """One rank: its driver, its state, its phase and its gradients of the step under way.

    Args:
        transport: The rank's end of the loopback.
        clock: The loopback's clock.
        rules: What to do.

    Attributes:
        state: What survives steps.
        phase: The phase in force; `enter` makes it.
        gradients: The step's gradients, and their means once it is done.
        error: The first error of the step.
    """

    phase: Phase

    def __init__(self, transport: LoopbackTransport, clock: VirtualClock, rules: Rules) -> None:
        self.rank = transport.rank
        self.state = State(rules.device)
        self.gradients: Gradients = {}
        self.error: BaseException | None = None
        self._rules = rules
        self._transport: Transport = transport
        self._device_stream = CPU_STREAM
        if rules.device.type == "cuda":
            stream = torch.cuda.current_stream()
            self._transport = Staged(transport, stream, _waiting(clock))
            self._device_stream = CudaDeviceStream(rules.device, stream)
        hosts = rules.hosts[: transport.size]
        self._sums = Sums(self._transport, rules.exchange.algorithm, hosts)
        self._unfinished: set[int] = set()
        self._driver = Driver(
            self._transport,
            partial(compute_now, device_stream=self._device_stream),
            lambda event: clock.at(clock.now_s, event),
            lambda: clock.now_s,
            rules.deadline_s,
            self._device_stream,
        )
        transport.failed = self._driver.fail
        # All state is there from the start, as in the engine.
        for step in sorted({b for c in rules.compressors.values() for b in c.breakpoints}):
            self._build(step)

    @property
    def busy(self) -> bool:
        """Whether a unit is under way."""
        return bool(self._unfinished)

    def enter(self, step: int) -> None:
        """Make the phase of a step, unless it is in force already."""
        if hasattr(self, "phase") and self.phase.first_step <= step < self.phase.end_step:
            return
        self.state.claimed.clear()  # what is claimed then, is kept in this phase
        self.phase = self._build(step)
        step_plan = self._rules.replan(self.rank, self.phase.plan(self._rules.policy, step))
        self._driver.follow(*step_plan)

    def starter(
        self, gradients: Mapping[str, torch.Tensor], context: StepContext, order: Sequence[int]
    ) -> Callable[[], None]:
        """Return the event that submits a step's units in some order.

        Args:
            gradients: By parameter name, of the parameter's shape and dtype; copied now.
            context: The step.
            order: Numbers of the units, as they become ready.
        """
        self.gradients = {name: gradient.clone() for name, gradient in gradients.items()}
        self._unfinished, self.error = set(order), None

        def start() -> None:
            self._device_stream.catch_up()
            for index in order:
                self._driver.start(self._task(index, context))

        return start

    def expire(self, now_s: float) -> None:
        """End whatever has waited for longer than the deadline by a time of the clock."""
        error = self._driver.expired(now_s)
        if error is not None:
            self._driver.fail(error)

    def _build(self, step: int) -> Phase:
        rules, transport = self._rules, self._transport
        kind, inside = rules.exchange.kind, rules.exchange.inside
        world = World(self.rank, transport.size, rules.seed, kind, self.state, inside)
        return Phase(rules.parameters, rules.compressors, step, rules.sizes, world, self._sums)

    def _task(self, index: int, context: StepContext) -> Task:
        _, unit, carriers = self.phase.members[index]
        program = unit.program(self.gradients, context, carriers, check_finite=True)
        finished = partial(self._finished, index)
        return Task(index, unit.name, context.step, program, finished)

    def _finished(self, index: int, error: BaseException | None) -> None:
        self._unfinished.discard(index)
        self.error = self.error or error


def _waiting(clock: VirtualClock) -> When:
    """What a GPU does takes no time on a virtual clock."""

    def when(event: torch.cuda.Event, callback: Callback | None) -> None:
        event.synchronize()
        if callback is not None:
            clock.at(clock.now_s, callback)

    return when


def compute_now(
    task: Task,
    operation: Compute,
    done: ComputeDone,
    device_stream: DeviceStream = CPU_STREAM,
) -> None:
    """Compute where it is asked for; what the engine would call an error, is one here.

    Args:
        task: Whose computation.
        operation: What is computed.
        done: Called before this returns, with the value or a CompressaError; others are raised.
        device_stream: Where.
    """
    try:
        with at(device_stream, task):
            value = operation.work()
    except CompressaError as error:
        done(None, error)
    else:
        done(value, None)
