"""Ready files for strategies, and for what other libraries do, train as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from _ranks import Pools

import compressa
from compressa.config.strategies import STRATEGIES

FOLDER = Path(__file__).parents[2] / "experiments" / "configs"
NAMED = {
    file: config.strategy.name
    for file in sorted(FOLDER.glob("*.toml"))
    if (config := compressa.load_config(file)).strategy is not None
}
PEERS = {"bytegrad": 0.02, "byteps": 0.002, "horovod": 0.02, "int8": 0.02}
"""Learning rates of SGD; with momentum in the file, and what is held back for long, a lower one."""


def learned(*, file: str) -> list[float]:
    """Train a linear model; return its squared distance from the teacher, before and after."""
    torch.manual_seed(0)
    net, teacher = torch.nn.Linear(64, 64, bias=False), torch.eye(64)
    rate = PEERS.get(Path(file).stem)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    if rate is not None:
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    data = torch.Generator().manual_seed(dist.get_rank())
    found = [(net.weight - teacher).square().sum().item()]
    with compressa.attach(net, optimizer, file) as strategy:
        for _ in range(100):
            x = torch.randn(32, 64, generator=data)
            loss = (strategy.model(x) - x @ teacher).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            strategy.step()
        strategy.sync()
    return [*found, (net.weight - teacher).square().sum().item()]


def test_each_strategy_but_the_usual_one_has_a_ready_file() -> None:
    assert {*NAMED.values(), "hook"} == {*STRATEGIES}


@pytest.mark.ranks
@pytest.mark.parametrize("file", [*(file.stem for file in NAMED), *PEERS])
def test_a_ready_file_trains(file: str, pools: Pools) -> None:
    ends = pools.get(2).run(learned, file=str(FOLDER / f"{file}.toml"))
    for before, after in ends:
        assert after < 0.2 * before
