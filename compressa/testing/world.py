"""LoopbackWorld: all ranks of a training run in one process, on a virtual clock.

The gradients go through what the engine uses: units, phases, plans, aggregators, programs and
one `Driver` per rank. Only the transport is the `Loopback`, and computations run where they
are asked for. So a run is repeatable bit for bit, needs no network, and takes as many ranks as
memory holds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Self

import torch

from compressa import checkpoint
from compressa.aggregators.base import CPU, State, StepContext
from compressa.compressor import Compressor
from compressa.config import Exchange
from compressa.engine.units.phase import StepPlan
from compressa.engine.units.units import UnitSizes
from compressa.errors import StateError, Timeout
from compressa.parameters import ParameterInfo
from compressa.testing.rank import Gradients, LoopbackRank, Rules
from compressa.transports.loopback import Loopback


class LoopbackWorld:
    """`size` ranks that combine gradients step by step.

    Args:
        size: Number of ranks.
        parameters: The model's parameters, in its order.
        compressors: One for all parameters, or by parameter name.
        exchange: As in `compressa.aggregators.World`.
        algorithm: As in the configuration's `exchange`.
        hosts: By rank, a letter that is the same for ranks that share a host; each has its own if
            not given. A larger world may come to need more of them.
        inside: As in `compressa.aggregators.World`.
        unit_bytes: Dense bytes at which a unit is full, whatever is left after compression.
        policy: Name of the scheduler.
        seed: Seed of the counter-based random bits.
        loopback: The network; ideal (no latency, unlimited bandwidth) if not given.
        deadline_s: Virtual seconds after which a wait is a `Timeout`.
        device: Where all ranks have their gradients and state.
        replan: Changes what a rank follows (rank, step plan) -> step plan; for fault injection.

    Attributes:
        loopback: The network and its virtual clock.
        next_step: Number of the next step.
    """

    def __init__(
        self,
        size: int,
        parameters: Sequence[ParameterInfo],
        compressors: Compressor | Mapping[str, Compressor],
        *,
        exchange: str = "auto",
        algorithm: str = "auto",
        hosts: str = "",
        inside: str = "none",
        unit_bytes: int = 2048,
        policy: str = "fifo",
        seed: int = 0,
        loopback: Loopback | None = None,
        deadline_s: float = 60.0,
        device: torch.device = CPU,
        replan: Callable[[int, StepPlan], StepPlan] = lambda rank, step_plan: step_plan,
    ) -> None:
        if isinstance(compressors, Compressor):
            compressors = {parameter.name: compressors for parameter in parameters}
        self.parameters = tuple(parameters)
        self._context = StepContext(0)
        ways = {"kind": exchange, "algorithm": algorithm, "inside": inside}
        self._rules = Rules(
            self.parameters,
            compressors,
            Exchange.model_validate(ways),
            UnitSizes(unit_bytes, 1, unit_bytes),
            policy,
            seed,
            deadline_s,
            device,
            hosts,
            replan,
        )
        self._connect(loopback or Loopback(size))

    def _connect(self, loopback: Loopback) -> None:
        """Begin anew, at step 0 and with a rank at each end of a network."""
        self.loopback, self.size, self.next_step = loopback, loopback.size, 0
        ends, clock = loopback.transports, loopback.clock
        self._ranks = [LoopbackRank(end, clock, self._rules) for end in ends]
        self.prepare()

    @property
    def states(self) -> list[State]:
        """Each rank's state."""
        return [rank.state for rank in self._ranks]

    @property
    def virtual_time_s(self) -> float:
        """The network's clock."""
        return self.loopback.clock.now_s

    @property
    def unit_count(self) -> int:
        """Number of units in force."""
        return len(self._ranks[0].phase.units)

    def sent_bytes(self, rank: int) -> int:
        """Bytes that a rank has handed to the network, frame headers included."""
        return self.loopback.transports[rank].traffic.sent_bytes

    def prepare(self) -> None:
        """Enter the phase of the next step, so that its state is there."""
        for rank in self._ranks:
            rank.enter(self.next_step)

    def step(
        self,
        gradients: Sequence[Mapping[str, torch.Tensor]],
        *,
        loss_scale: float = 1.0,
        hold_zeros: bool = False,
        ready: Sequence[Sequence[int]] | None = None,
        late_s: Sequence[float] | None = None,
    ) -> list[Gradients]:
        """Combine one step's gradients.

        Args:
            gradients: By rank and parameter name, of the parameter's shape; they are copied first.
            loss_scale: What they were multiplied by.
            hold_zeros: As in `StepContext`.
            ready: By rank, the order in which its units become ready.
            late_s: By rank, how long after the others it begins.

        Returns:
            By rank and name, the mean over the ranks.

        Raises:
            CompressaError: The first error of any rank; the world cannot be used afterwards.
            StateError: A unit can never finish, and nobody waits for a message.
        """
        self.prepare()
        self._context = StepContext(self.next_step, 0, loss_scale, hold_zeros)
        clock, begin_s = self.loopback.clock, self.virtual_time_s
        for rank, own in zip(self._ranks, gradients, strict=True):
            order = range(self.unit_count) if ready is None else ready[rank.rank]
            delay_s = 0.0 if late_s is None else late_s[rank.rank]
            clock.at(begin_s + delay_s, rank.starter(own, self._context, order))
        clock.run()
        self._wait_out_deadline()
        self.next_step += 1
        self._raise_errors()
        return [rank.gradients for rank in self._ranks]

    def rollback(self) -> None:
        """Skip the last step: what it sent returns to the residuals."""
        for rank in self._ranks:
            for unit in rank.phase.units:
                unit.aggregator.rollback(self._context)

    def errors(self) -> list[BaseException | None]:
        """Return each rank's first error in the last step."""
        return [rank.error for rank in self._ranks]

    def resized(self, size: int) -> Self:
        """Return a world of another size that goes on from here, through a checkpoint.

        Its network is ideal; all else is as it is here.
        """
        world = copy(self)
        world._connect(Loopback(size))
        world.next_step = self.next_step
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder))
            world.load(Path(folder))
        return world

    def save(self, path: Path) -> None:
        """Write a checkpoint of all ranks.

        Args:
            path: A folder, which is made if it is not there.
        """
        pairs = enumerate(self.states)
        digests = [checkpoint.write_rank(path, rank, state) for rank, state in pairs]
        checkpoint.write_manifest(path, self.next_step, digests, self.parameters)

    def load(self, path: Path) -> None:
        """Read a checkpoint of any number of ranks; `next_step` stays as it is.

        Args:
            path: The folder that `save` was given.

        Raises:
            StateError: It cannot be read, or is of other parameters.
        """
        manifest = checkpoint.read_manifest(path, self.parameters)
        for rank, state in enumerate(self.states):
            checkpoint.restore(path, manifest, state, rank, self.size)

    def _wait_out_deadline(self) -> None:
        """If a rank still waits when nothing more can happen, let its deadline pass."""
        if any(rank.busy for rank in self._ranks):
            deadline_s = self.virtual_time_s + 1.01 * self._rules.deadline_s
            self.loopback.clock.at(deadline_s, lambda: None)
            self.loopback.clock.run()
        for rank in self._ranks:
            rank.expire(self.virtual_time_s)

    def _raise_errors(self) -> None:
        found = [error for error in self.errors() if error is not None]
        # A rank that failed by itself explains the others' timeouts.
        found.sort(key=lambda error: isinstance(error, Timeout))
        if found:
            raise found[0]
        stuck = [rank.rank for rank in self._ranks if rank.busy]
        if stuck:
            raise StateError(f"ranks {stuck} hold units back for ever: the plan is a deadlock")
