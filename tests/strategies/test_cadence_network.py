"""H follows the link that there is, between hosts on shaped links."""

from __future__ import annotations

import time

import pytest
import torch
from _between_hosts import MARKS, own_testbeds, warm_ranks

import compressa
from benchmarks.hosts import opened_hosts
from compressa.strategies.base import EngineStrategy
from harness.start import started_ranks
from harness.wire import Wire

pytestmark = [*MARKS, pytest.mark.usefixtures("warm_ranks")]
__all__ = ["own_testbeds", "warm_ranks"]

STEP_S, SHARE, WIDTH = 0.02, 0.25, 256


class Training:
    """Two ranks that meet as often as the link allows; see `harness.rank`."""

    def __init__(self, wire: Wire) -> None:
        settings = {"name": "local_sgd", "every": 2, "adapt": "link", "link_share": SHARE}
        self._model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        config = {"compressor": "none", "strategy": settings}
        self._strategy = compressa.attach(self._model, optimizer, config)

    def train(self, steps: int) -> dict[str, list[int]]:
        """Take some steps; tell after which of them ranks met."""
        assert isinstance(self._strategy, EngineStrategy)
        met = []
        for step in range(steps):
            time.sleep(STEP_S)
            self._model.weight.grad = torch.randn(WIDTH, WIDTH)
            before = self._strategy.handle.next_step
            self._strategy.step()
            if self._strategy.handle.next_step > before:
                met.append(step)
        return {"met": met}

    def close(self) -> None:
        """Let go of the other rank."""
        self._strategy.close()


def test_ranks_meet_more_rarely_on_a_slower_link_and_again_as_often() -> None:
    megabits = 10
    due = 4 * WIDTH**2 * 8 / (megabits * 1e6) / (SHARE * STEP_S)  # each sends half of it, twice
    found = []
    with (
        opened_hosts(2, "unshaped") as bed,
        started_ranks(bed, f"{__name__}:Training") as ranks,
    ):
        for link in ("unshaped", f"{megabits}mbit", "unshaped"):
            bed.set_link(link)
            met = ranks.ask("train", steps=130)["met"]
            found.append(met[-1] - met[-2])
        ranks.ask("close")
    fast, slow, again = found
    assert max(fast, again) <= 6, found
    assert 0.8 * due < slow < 1.6 * due, (found, due)
