"""What a process does when a launcher has started it with a cluster specification.

torchrun --nproc-per-node 3 tests/_roles.py FOLDER
mpiexec -n 3 python tests/_roles.py FOLDER
python tests/_roles.py FOLDER ray
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

import compressa
from compressa.errors import ConfigError

STEPS = 40
RATE = 1 / 4  # a power of two, so that sums of it are exact
SIZE = 3
WRONG: dict[str, dict[str, Any]] = {
    "too few tasks": {"cluster": {"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}},
    "too many tasks": {"cluster": {"worker": ["127.0.0.1:1"] * 3, "ps": ["127.0.0.1:2"]}},
    "a kind": {"cluster": {"worker": ["127.0.0.1:1"] * 2, "server": ["127.0.0.1:2"]}},
    "nobody trains": {"cluster": {"ps": ["127.0.0.1:1"] * 3}},
    "an index": {
        "cluster": {"worker": ["127.0.0.1:1"] * 2, "ps": ["127.0.0.1:2"]},
        "task": {"type": "ps", "index": 1},
    },
}


class Counted(nn.Module):
    """A linear model, with a parameter that counts what each rank sends."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 4)
        self.sent = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is predicted, and what has minus one for a gradient where the rank counts."""
        return self.linear(x), -self.sent[rank]


def played(port: int) -> dict[str, Any]:
    """Be refused what is wrong, then train in every way that the roles allow."""
    torch.set_num_threads(1)
    workers = [f"127.0.0.1:{port}", "127.0.0.1:1"]
    served = json.dumps({"cluster": {"worker": workers, "ps": ["127.0.0.1:2"]}})
    alone = json.dumps({"cluster": {"chief": workers[:1], "worker": ["127.0.0.1:1"] * 2}})
    found: dict[str, Any] = {"refused": {kind: refused(wrong) for kind, wrong in WRONG.items()}}
    role = compressa.init_from_tf_config(served, timeout=timedelta(seconds=60))
    found["role"] = [role.rank, role.size, role.servers, role.local_rank]
    found["served"] = trained(role, role.strategy("bounded", staleness=0), "int8")
    found["apart"] = trained(role, role.strategy("async", weighting="sum"), "none")
    role = compressa.init_from_tf_config(alone)  # the group that is there has as many ranks
    found["alone"] = trained(role, role.strategy("hook"), "int8")
    return found


def refused(said: dict[str, Any]) -> str:
    """Return why nothing begins with a specification."""
    try:
        compressa.init_from_tf_config(json.dumps(said), timeout=timedelta(seconds=60))
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{said} was taken")


def trained(role: Any, strategy: dict[str, Any], compressor: str) -> dict[str, Any] | None:
    """Train; return the losses, the bits of all parameters, and how many pushes were counted.

    Ranks that do not wait for each other take different numbers of steps.
    """
    net, teacher = Counted(), torch.ones(16, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    config = {"compressor": compressor, "strategy": strategy}
    data = torch.Generator().manual_seed(role.rank)
    losses = []
    with compressa.attach(net, optimizer, config) as handle:
        if handle.serves:
            handle.serve()
            return None
        for _ in range(STEPS + 10 * role.rank * (strategy["name"] == "async")):
            x = torch.randn(32, 16, generator=data)
            predicted, count = handle.model(x, role.rank)
            loss = (predicted - x @ teacher).square().mean()
            optimizer.zero_grad()
            (loss + count).backward()
            handle.step()
            losses.append(loss.item())
        handle.sync()
    values = torch.cat([p.detach().flatten() for p in net.parameters()])
    bits = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    return {"losses": [losses[0], losses[-1]], "bits": bits, "sent": (net.sent / RATE).tolist()}


def note(config: dict[str, Any]) -> None:
    """Play a role, and write what was found for the test."""
    found = played(config["port"])
    path = Path(config["folder"], f"{found['role'][0]}.json")
    path.write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


def by_ray(config: dict[str, Any]) -> None:
    """Have Ray start the processes, with one core for all."""
    import ray
    import ray.train.torch
    from ray.train import RunConfig, ScalingConfig

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    scaling = ScalingConfig(num_workers=SIZE, resources_per_worker={"CPU": 0.25})
    ray.train.torch.TorchTrainer(
        note,
        train_loop_config=config,
        scaling_config=scaling,
        run_config=RunConfig(storage_path=config["folder"]),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    how = {"folder": sys.argv[1], "port": int(os.environ["ROLES_PORT"])}
    (by_ray if sys.argv[2:] == ["ray"] else note)(how)
