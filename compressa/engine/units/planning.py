"""Planning: all ranks follow plans that are made from what was measured on all of them.

Every so many steps each rank tells rank 0 its profile, beside the step that goes on. At the next
step rank 0 merges them by the maximum, makes a plan if they have drifted from those that the last
one was made for, and publishes it. Two steps later all ranks follow it: by then it has come, and
who has not got it waits. With it comes how steps are done; while another way of that is tried, the
next profile is told as soon as can be. So the steps at which ranks speak depend on nothing that
one of them alone has measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from compressa.config import Config
from compressa.engine.control.awaited import Awaited
from compressa.engine.control.control import Control
from compressa.engine.measuring.profiler import Profiler
from compressa.engine.measuring.stats import Overlap, Way
from compressa.engine.units.bundles import Joining, grouped
from compressa.engine.units.fastest_way import CHOICE_BYTES, FastestWay, packed, unpacked, usual_s
from compressa.engine.units.phase import Phase, StepPlan
from compressa.errors import PeerLost
from compressa.schedulers import Name, Plan, Profile

_ROOT = 0
_AHEAD = 2
_DRIFT = 0.1
_SECONDS = np.dtype("<f8")
_NUMBER = np.dtype("<u4")
_AT_ONCE_POLICY = "fifo"  # backward waits for everything, as with the hook


class Planning:
    """The plans of one phase after another.

    Args:
        config: Says by which policy, how often, and how long to wait for a profile or a plan.
        control: Carries profiles and plans; None in a world of one, where nothing is sent.
        decided: Called with a step and how it and others are done, if that is news.

    Attributes:
        replans: Whether plans follow what is measured.
        profiler: What measures the steps of the phase in force; `enter` makes it.
        step_plan: What all ranks follow now.
        joining: Which units go together now.
        profile: On rank 0, what the last step plan was made for; None if for nothing that was
            measured.
        overlap: How steps are done now; as they come, unless `choose` was called.
    """

    replans: bool
    profiler: Profiler
    step_plan: StepPlan
    joining: Joining

    def __init__(
        self,
        config: Config,
        control: Control | None,
        decided: Callable[[int, Overlap], None],
    ) -> None:
        self.profile: Profile | None = None
        self._control = control
        self._schedule = config.schedule
        self._deadline_s = config.exchange.deadline_s
        self._decided = decided
        self._round = 0
        self._profiles: Awaited | None = None
        self._plan: Awaited | None = None
        self._own = b""
        self._first = True  # of a phase's rounds
        self.overlap = Overlap()
        self._ways: tuple[Way, ...] = ()
        self._joins = False
        self._needs: Mapping[str, float] = {}
        self._forward_s = 0.0

    def choose(self, *ways: Way, joins: bool) -> None:
        """Have steps be done in one of some ways; before the first step.

        Args:
            ways: The first is in force. In a world of several, the one that takes least time is.
            joins: Whether units that are small, for others to overtake, go with their neighbours
                where nothing does.
        """
        self.overlap, self._ways, self._joins = Overlap(ways[0]), ways, joins
        self._begin_ways()

    def forward(self, needs: Mapping[str, float], forward_s: float) -> None:
        """Note, at its end, when the forward needs parameters; that is so in all steps to come.

        Args:
            needs: Seconds of computing from its start until each is used first, by name; those that
                are missing are needed at once.
            forward_s: Seconds of computing until its end.
        """
        self._needs, self._forward_s = dict(needs), forward_s
        self.profiler.forward(self._needs, forward_s)
        self.profiler.forward_ended()

    @property
    def unit_names(self) -> list[str]:
        """The units of the phase in force, for people."""
        return [unit.name for unit in self._phase.units]

    def enter(self, phase: Phase, step: int) -> StepPlan:
        """Begin a phase, or a stretch of steps that follows on none; return its first plan.

        What was under way is forgotten, on all ranks at the same step.

        Args:
            phase: To plan for.
            step: Its first.
        """
        steps = self._schedule.profile_steps
        self.profiler = Profiler([unit.names for unit in phase.units], steps)
        self.profiler.forward(self._needs, self._forward_s)
        self.profile = None
        self._phase = phase
        self._round = step + steps
        self._profiles = self._plan = None
        self._first = True
        self.step_plan = phase.plan(self._policy(self.overlap), step)
        self._names = sorted(self.step_plan.plan.order)
        self._begin_ways()
        return self.step_plan

    def begin(self, step: int) -> StepPlan | None:
        """Begin a step, after those before it have ended; return its plan if that is a new one.

        To be called if it `replans`.

        Raises:
            TransportError: A rank's profile, or the plan, has not come in time, or is none.
        """
        if self._control is None or not self._names:
            return None
        step_plan = None
        if step == self._round:
            self._profiles = self._tell(self._control)
        elif step == self._round + 1:
            self._plan = self._publish(self._control, step + _AHEAD)
        elif step == self._round + 1 + _AHEAD:
            step_plan = self._take(step)
            self.step_plan = step_plan or self.step_plan
            self._join()
            first, self._first = self._first, False
            soon = self.overlap.measuring or (first and self._fastest is not None)
            steps = self._schedule.profile_steps + 1 if soon else self._schedule.replan_steps
            self._round = step + steps
        return step_plan

    def _begin_ways(self) -> None:
        """Begin to look for the fastest way, in a world of several, if there are several."""
        ways = [way for way in self._ways if way != "together" or self._joins_more()]
        self.overlap = Overlap(self.overlap.way if self.overlap.way in ways else "at once")
        self._fastest = FastestWay(ways) if self._control is not None and len(ways) > 1 else None
        overtakes = self._control is not None and self._schedule.overtaking
        self.replans = overtakes or self._fastest is not None
        self._join()

    def _joins_more(self) -> bool:
        """Whether fewer units are left where all go together, and nothing forbids that."""
        most, usual = (grouped(self._phase, Joining(self._joins, large)) for large in (True, False))
        return most != usual and not self._phase.ordered()

    def _join(self) -> None:
        """Have units go together, where none are to overtake them."""
        plan, launches = self.step_plan
        free = not (self.overlap.deferring or plan.groups or launches)
        self.joining = Joining(free and self._joins, free and self.overlap.way == "together")

    def _policy(self, overlap: Overlap) -> str:
        return _AT_ONCE_POLICY if self._joins and not overlap.deferring else self._schedule.policy

    def _tell(self, control: Control) -> Awaited:
        """Tell rank 0 this rank's profile."""
        numbers = np.array(self.profiler.profile().numbers(), _SECONDS)
        if control.rank != _ROOT:
            return control.exchange({_ROOT: numbers.tobytes()}, {}, "profile")
        others = range(1, control.size)
        return control.exchange({}, dict.fromkeys(others, numbers.nbytes), "profile")

    def _publish(self, control: Control, first_step: int) -> Awaited:
        """On rank 0, tell all others the plan."""
        if control.rank != _ROOT:
            count = 2 * len(self._names) + len(self.step_plan.launches)
            most_bytes = CHOICE_BYTES + _NUMBER.itemsize * count
            return control.exchange({}, {_ROOT: most_bytes}, "plan")
        self._own = self._decide(first_step)
        return control.exchange(dict.fromkeys(range(1, control.size), self._own), {}, "plan")

    def _decide(self, first_step: int) -> bytes:
        """On rank 0, plan for what all ranks have measured, if that is not as it was.

        Returns:
            How steps are done from that one on; and the plan, if it is a new one.
        """
        assert self._profiles is not None, "profiles are told a step before"
        told = self._profiles.wait(self._deadline_s)
        profiles = [_profile_of(peer, buffer, self.profiler) for peer, buffer in told.items()]
        merged = Profile.merged([self.profiler.profile(), *profiles])
        overlap, steps_s = self.overlap, [seconds for seconds, _ in self.profiler.steps()]
        if self._fastest is not None and steps_s:
            overlap = self._fastest.next(overlap, usual_s(steps_s))
        same = overlap.way == self.overlap.way
        if same and self.profile is not None and self.profile.drift(merged) <= _DRIFT:
            return packed(overlap)
        self.profile = merged
        step_plan = self._phase.plan(self._policy(overlap), first_step, merged)
        return packed(overlap) + written(step_plan, self._names)

    def _take(self, step: int) -> StepPlan | None:
        """Do steps as rank 0 says; return its plan, if it is not the one in force."""
        assert self._plan is not None, "a plan is published two steps before"
        told = self._plan.wait(self._deadline_s)
        data = told[_ROOT].numpy().tobytes() if _ROOT in told else self._own
        try:
            overlap, plan = unpacked(data[:CHOICE_BYTES]), data[CHOICE_BYTES:]
            step_plan = read(plan, self._names, self._phase.ordered(), step) if plan else None
        except ValueError as error:
            raise PeerLost(_ROOT, f"rank {_ROOT} published no plan for these units") from error
        if overlap != self.overlap:
            self.overlap = overlap
            self._decided(step, overlap)
        return step_plan


def written(step_plan: StepPlan, names: Sequence[Name]) -> bytes:
    """Write a step plan for transfers that all ranks know, as 32-bit numbers; see `read`.

    For each position of the plan: which transfer is there; then, for each position, that of the
    first that leaves in one message with it; then the launches.

    Args:
        step_plan: Of all of these transfers.
        names: (unit, stage) of each transfer of a step, in an order that all ranks share.
    """
    plan, number = step_plan.plan, {name: i for i, name in enumerate(names)}
    heads = np.arange(len(plan.order))
    for group in plan.groups:
        members = [plan.priorities[name] for name in group]
        heads[members] = min(members)
    order, in_turn = ([number[name] for name in row] for row in (plan.order, step_plan.launches))
    return np.concatenate([order, heads, in_turn]).astype(_NUMBER).tobytes()


def read(data: bytes, names: Sequence[Name], ordered: set[Name], first_step: int) -> StepPlan:
    """Read what `written` wrote.

    Args:
        data: From outside.
        names: The transfers of a step.
        ordered: Those that all ranks must launch in one order.
        first_step: First step that follows it.

    Raises:
        ValueError: It is not a step plan for these transfers.
    """
    count = len(names)
    if len(data) != _NUMBER.itemsize * (2 * count + len(ordered)):
        raise ValueError(f"{len(data)} bytes are no order of {count} transfers")
    numbers = np.frombuffer(data, _NUMBER)
    order, heads, in_turn = np.split(numbers, [count, 2 * count])
    if (np.sort(order) != np.arange(count)).any() or (heads > np.arange(count)).any():
        raise ValueError(
            "each transfer has one position, and the first of its message no later one"
        )
    if (in_turn >= count).any() or sorted(names[i] for i in in_turn) != sorted(ordered):
        raise ValueError("the launches are not those that need an order")
    in_order = [names[i] for i in order]
    groups: defaultdict[int, list[Name]] = defaultdict(list)
    for name, head in zip(in_order, heads.tolist(), strict=True):
        groups[head].append(name)
    fused = tuple(tuple(group) for group in groups.values() if len(group) > 1)
    return StepPlan(Plan(tuple(in_order), first_step, groups=fused), [names[i] for i in in_turn])


def _profile_of(peer: int, buffer: torch.Tensor, profiler: Profiler) -> Profile:
    """Check what a rank has told of its steps.

    Raises:
        PeerLost: It is no profile of as many units.
    """
    try:
        profile = Profile.of(np.frombuffer(buffer.numpy(), _SECONDS).tolist())
    except ValueError as error:
        raise PeerLost(peer, f"rank {peer} told a profile that is none: {error}") from error
    if len(profile.units) != profiler.units:
        raise PeerLost(peer, f"rank {peer} told a profile of {len(profile.units)} units")
    return profile
