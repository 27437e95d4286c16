"""local_sgd and post_local_sgd: the mean of all ranks' parameters, every H steps.

Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; Lin, Stich, Patel and Jaggi,
"Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020. With H = 1, SGD (with momentum or without)
takes the steps that it would take with mean gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from compressa.config.strategy_sections import LocalSGD, PostLocalSGD
from compressa.strategies.base import Strategy, Training
from compressa.strategies.cadence import AfterDecay, AfterSteps, Always, ByLink, ByRate, Cadence
from compressa.strategies.periodic import Replica, Rule, open_periodic


class Mean(Rule):
    """The anchor moves by the mean difference, and all go on from there."""

    def meet(self, replicas: Sequence[Replica], ranks: int) -> None:
        """Add the means."""
        for replica in replicas:
            replica.anchor.add_(replica.difference)
            replica.own.copy_(replica.anchor)


def open_local_sgd(training: Training) -> Strategy:
    """Open what the section `LocalSGD` says."""
    settings = training.config.strategy
    assert isinstance(settings, LocalSGD)
    cadences: dict[str, Cadence] = {
        "none": Always(settings.every),
        "rate": ByRate(settings.every, settings.rate_scale, settings.longest),
        "link": ByLink(settings.every, settings.link_share, settings.longest),
    }
    return open_periodic(training, Mean(), cadences[settings.adapt])


def open_post_local_sgd(training: Training) -> Strategy:
    """Open what the section `PostLocalSGD` says."""
    settings = training.config.strategy
    assert isinstance(settings, PostLocalSGD)
    if settings.after_steps is None:
        return open_periodic(training, Mean(), AfterDecay(settings.every))
    return open_periodic(training, Mean(), AfterSteps(settings.every, settings.after_steps))
