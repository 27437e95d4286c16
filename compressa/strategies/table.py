"""The strategies that there are: by name, what opens each, and facts that documents show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compressa.strategies.base import Strategy, Training
from compressa.strategies.diloco import open_diloco
from compressa.strategies.easgd import open_easgd
from compressa.strategies.every_step import open_hook, open_overlapped
from compressa.strategies.gossip import open_gossip
from compressa.strategies.hogwild import open_hogwild
from compressa.strategies.local_sgd import open_local_sgd, open_post_local_sgd


@dataclass(frozen=True)
class Entry:
    """One strategy.

    Attributes:
        open: Makes it. Collective.
        averages: What crosses the network.
        apart: Whether ranks hold different parameters between meetings.
        source: Where it was described first.
    """

    open: Callable[[Training], Strategy]
    averages: str
    apart: bool
    source: str


STRATEGIES: dict[str, Entry] = {
    "hook": Entry(open_hook, "gradients, in backward", apart=False, source="Li et al. 2020"),
    "overlapped": Entry(
        open_overlapped,
        "gradients, until the next forward pass needs them",
        apart=False,
        source="Peng et al. 2019",
    ),
    "local_sgd": Entry(open_local_sgd, "parameters", apart=True, source="Stich 2019"),
    "post_local_sgd": Entry(
        open_post_local_sgd,
        "parameters, in each step at first",
        apart=True,
        source="Lin et al. 2020",
    ),
    "diloco": Entry(
        open_diloco,
        "outer gradients, by fragments",
        apart=True,
        source="Douillard et al. 2023, 2025",
    ),
    "easgd": Entry(open_easgd, "distances from a centre", apart=True, source="Zhang et al. 2015"),
    "gossip": Entry(
        open_gossip,
        "parameters, with neighbours only",
        apart=True,
        source="Lian et al. 2017; Koloskova et al. 2019",
    ),
    "hogwild": Entry(
        open_hogwild,
        "nothing: one host's ranks share memory",
        apart=False,
        source="Niu et al. 2011",
    ),
}
"""By `strategy.name`."""

USUAL = "hook"
"""What is meant where the configuration names none."""
