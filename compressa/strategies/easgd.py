"""easgd: each rank is drawn to a centre, and the centre to their mean (synchronous EASGD).

Zhang, Choromanska and LeCun, "Deep Learning with Elastic Averaging SGD", NeurIPS 2015. With alpha =
beta / P: x_i <- x_i - alpha (x_i - x~), x~ <- x~ + beta (mean of x_i - x~). The anchor is the
centre.
"""

from __future__ import annotations

from collections.abc import Sequence

from compressa.config.strategy_sections import EASGD
from compressa.strategies.base import Strategy, Training
from compressa.strategies.cadence import Always
from compressa.strategies.periodic import Replica, Rule, open_periodic


class Elastic(Rule):
    """Both ends of the spring move by what they were apart.

    Args:
        pull: Beta.
    """

    unites = False

    def __init__(self, pull: float) -> None:
        self._pull = pull

    def meet(self, replicas: Sequence[Replica], ranks: int) -> None:
        """Move the rank's own parameters by where the centre was, then the centre."""
        for replica in replicas:
            replica.own.lerp_(replica.anchor, self._pull / ranks)
            # Rounded twice on every processor, so that anchors have the same bits on all ranks.
            replica.anchor.add_(replica.difference.mul_(self._pull))


def open_easgd(training: Training) -> Strategy:
    """Open what the section `EASGD` says."""
    settings = training.config.strategy
    assert isinstance(settings, EASGD)
    return open_periodic(training, Elastic(settings.pull), Always(settings.every))
