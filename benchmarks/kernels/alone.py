"""One rank's steps of an aggregator, with nobody to exchange with: its arithmetic alone."""

from __future__ import annotations

import torch

from benchmarks.kernels.operands import Operands
from benchmarks.timing import Call
from compressa.aggregators.base import Aggregator, AllGather, Request, State, StepContext, World
from compressa.compressor import Compressor
from compressa.parameters import Layout, ParameterInfo, Segment


def step(compressor: Compressor, shape: tuple[int, ...], operands: Operands) -> Call:
    """Return a function that runs one more step of a parameter of this shape.

    The aggregator leaves its result in the gradient, and what that lacks in its residual. The
    next step starts from there, so their sum stays what it was.
    """
    parameter = ParameterInfo(0, "parameter", shape)
    layout = Layout(0, (Segment(parameter, 0, parameter.elems),))
    aggregator = compressor.aggregator(layout, World(0, 1, 0, "auto", State()))
    gradients = [operands.out.copy_(operands.gradient)]
    done = 0

    def call() -> None:
        nonlocal done
        run_alone(aggregator, gradients, StepContext(done))
        done += 1

    return call


def run_alone(aggregator: Aggregator, gradients: list[torch.Tensor], context: StepContext) -> None:
    """Answer an aggregator's requests as a world of one rank does."""
    rounds = aggregator.run(gradients, context)
    request: Request | None = next(rounds, None)
    while request is not None:
        try:
            request = rounds.send(_answer(request))
        except StopIteration:
            request = None


def _answer(request: Request) -> dict[int, torch.Tensor] | None:
    return {0: request.payload} if isinstance(request, AllGather) else None
