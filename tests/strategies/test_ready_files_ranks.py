"""Ready files for strategies, and for what other libraries do, train as they are."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from _ranks import Group, Pools

import compressa
import compressa.optim
from compressa.config.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "configs"
NAMED = {
    file: config.strategy.name
    for file in sorted(FOLDER.glob("*.toml"))
    if (config := compressa.load_config(file)).strategy is not None
}
PEERS = sorted(
    {
        stem
        for page in ("byteps", "horovod", "tensorflow")
        for stem in re.findall(r"`(\w+)\.toml`", (ROOT / f"docs/from/{page}.md").read_text("utf-8"))
    }
    - {file.stem for file in NAMED}
)
"""What is named on pages for people who come from elsewhere."""
RATES = {"bytegrad": 0.02, "byteps": 0.002, "horovod": 0.02, "int8": 0.02, "randomk": 0.005}
"""Learning rates of SGD; with momentum in the file, and what is held back for long, a lower one."""


def learned(*, file: str, folder: str) -> list[float]:
    """Train a linear model; return its squared distance from the teacher, before and after.

    Args:
        file: The configuration.
        folder: Where it may write.
    """
    torch.manual_seed(0)
    net, teacher = torch.nn.Linear(64, 64, bias=False), torch.eye(64)
    rate = RATES.get(Path(file).stem)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    if rate is not None:
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    data = torch.Generator().manual_seed(dist.get_rank())
    found = [(net.weight - teacher).square().sum().item()]
    with contextlib.chdir(folder), compressa.attach(net, optimizer, file) as strategy:
        if strategy.serves:
            strategy.serve()
            return []
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
def test_a_ready_file_trains(file: str, pools: Pools, tmp_path: Path) -> None:
    path = FOLDER / f"{file}.toml"
    serves = getattr(compressa.load_config(path).strategy, "dedicated", False)
    ends = pools.get(3 if serves else 2).run(learned, file=str(path), folder=str(tmp_path))
    assert ends.count([]) == serves
    for before, after in filter(None, ends):
        assert after < 0.2 * before
    if file == "horovod_elastic":
        assert len(list(tmp_path.glob("timeline*.json"))) == 2


def of_eight_bits(*, file: str) -> list[float]:
    """Train by 1-bit Adam with another compressor; return the loss at first and in the end."""
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 64, bias=False)
    data, losses = torch.Generator().manual_seed(dist.get_rank()), []
    with compressa.optim.OneBitAdam(
        net.named_parameters(), warmup_steps=20, lr=0.01, config=file
    ) as optimizer:
        for _ in range(100):
            x = torch.randn(32, 64, generator=data)
            loss = (net(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert set(optimizer.stats().compressors) == {"int8", "none"}  # which is the warm-up's
    return [losses[0], losses[-1]]


@pytest.mark.ranks
def test_the_ready_file_of_qadam_trains(two: Group) -> None:
    for before, after in two.run(of_eight_bits, file=str(FOLDER / "int8.toml")):
        assert after < 0.2 * before
