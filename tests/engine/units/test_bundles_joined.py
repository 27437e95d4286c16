"""Units that are joined to one: every value, and all that is kept, is what it would be alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from compressor_cases import ALL, AROUND, params, with_feedback

from compressa.aggregators.base import State, StepContext, World
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import DGC, Int4, Int8, OneBit, TopK
from compressa.collectives.base import Program
from compressa.compressor import Compressor
from compressa.engine.device_stream import DeviceStream
from compressa.engine.units.bundles import Bundle, Bundles, Joining
from compressa.engine.units.lockstep import run_alike
from compressa.engine.units.phase import Phase
from compressa.engine.units.sums import Sums
from compressa.engine.units.unit_runtime import give_back
from compressa.engine.units.units import UnitSizes
from compressa.parameters import ParameterInfo
from compressa.transports.loopback import Loopback
from compressa.wrappers import ErrorFeedback, MomentumCorrection

SHAPES = {
    "table": (40, 50),
    "bias": (70,),
    "kernel": (8, 4, 3, 3),
    "scale": (33,),
    "head": (30, 50),
}
STEPS = 3
SMALL = UnitSizes(1200, 1, 1200)
RULES: dict[str, Compressor] = {
    "residuals in int8": ErrorFeedback(codec=Int8(block=32), rule=FeedbackRule(dtype="int8")),
    "residuals in bfloat16": ErrorFeedback(codec=TopK(), rule=FeedbackRule(dtype="bfloat16")),
    "moving average": ErrorFeedback(codec=OneBit(block=64), rule=FeedbackRule(beta=0.5)),
    "dropped every other step": ErrorFeedback(codec=Int4(), rule=FeedbackRule(reset_steps=2)),
    "momentum": MomentumCorrection(compressor=ErrorFeedback(codec=DGC(density=0.1))),
    "momentum of factors": MomentumCorrection(compressor=PowerSGD(approx_rank=1)),
}
ALONE = Joining()
JOINING = (ALONE, Joining(small=True), Joining(small=True, large=True))
NEVER = {"none", "gtopk", "oktopk", "scalecom"}
"""What is laid side by side would be copied; or ranks differ in what they have to do."""


class Ranks:
    """Ranks that train side by side, each step with units alone or together.

    Attributes:
        members: How many units stand for each bundle of the last step, on rank 0.
    """

    members: list[int]

    def __init__(self, size: int, compressor: Compressor, dtype: torch.dtype) -> None:
        self.parameters = [ParameterInfo(i, n, s, dtype) for i, (n, s) in enumerate(SHAPES.items())]
        self.states = [State() for _ in range(size)]
        transports = Loopback(size).transports
        rules = dict.fromkeys(SHAPES, compressor)
        self.bundles = []
        for rank, state in enumerate(self.states):
            world, sums = World(rank, size, 0, "auto", state), Sums(transports[rank])
            phase = Phase(self.parameters, rules, 0, SMALL, world, sums)
            self.bundles.append(Bundles(phase, DeviceStream()))

    def step(
        self, step: int, joining: Joining = ALONE, *, skipped: bool = False
    ) -> list[torch.Tensor]:
        """Return the means, rank after rank; skipped, what was sent is taken back."""
        gradients = [self._gradients(step, rank) for rank in range(len(self.states))]
        if skipped:
            gradients[0]["table"][0, 0] = torch.inf
        context = StepContext(step)
        for bundles in self.bundles:
            bundles.begin(joining)
        complete = list(map(self._complete, self.bundles))
        self.members = [len(bundle.members) for bundle in complete[0]]
        for these in zip(*complete, strict=True):
            pairs = zip(gradients, these, strict=True)
            run_alike([self._program(bundle, own, context) for own, bundle in pairs])
        for bundles in self.bundles:
            give_back(bundles.running, context)
        return [values for own in gradients for values in own.values()]

    def _program(
        self, bundle: Bundle, gradients: Mapping[str, torch.Tensor], context: StepContext
    ) -> Program[None]:
        members = [
            each.unit.program(gradients, context, each.carriers, check_finite=True)
            for each in bundle.members
        ]
        return bundle.program(members)

    def _complete(self, bundles: Bundles) -> Sequence[Bundle]:
        count = sum(len(each.layout.joined) or 1 for each in bundles.running)
        return bundles.complete(range(count))

    def _gradients(self, step: int, rank: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(100 * step + rank)
        values = {p.name: torch.randn(p.shape, generator=generator) for p in self.parameters}
        return {p.name: values[p.name].to(p.dtype) for p in self.parameters}


def bits(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    return [each.contiguous().view(torch.uint8).numpy().tobytes() for each in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("compressor", params({**ALL, **AROUND, **RULES}))
def test_what_is_joined_has_the_bits_of_each_alone(
    compressor: Compressor, size: int, dtype: torch.dtype
) -> None:
    compressor = with_feedback(compressor)
    alone, joined = (Ranks(size, compressor, dtype) for _ in range(2))
    for step in range(STEPS):
        skipped = step == STEPS - 1
        means = [
            ranks.step(step, joining, skipped=skipped)
            for ranks, joining in ((alone, ALONE), (joined, JOINING[step % 3]))  # ways may change
        ]
        assert bits(means[0]) == bits(means[1])
        kept = [
            [values for state in ranks.states for _, values in sorted(state.vectors.items())]
            for ranks in (alone, joined)
        ]
        assert bits(kept[0]) == bits(kept[1])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("compressor", params(ALL))
def test_units_are_joined_wherever_that_is_possible(compressor: Compressor, size: int) -> None:
    ranks = Ranks(size, with_feedback(compressor), torch.float32)
    ranks.step(0)
    separate = ranks.members
    assert len(separate) > 2
    for joining in JOINING[1:]:
        ranks.step(1, joining)
        assert (sum(ranks.members) < sum(separate)) == (compressor.name not in NEVER)
