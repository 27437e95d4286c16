# torchrun --nproc-per-node 2 examples/fsdp2.py
"""FSDP2 with int8 gradients and int8 weights: one line more than without; saved and resumed."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import compressa

FOLDER = "ckpt/fsdp2"
CONFIG = {"compressor": "int8", "fsdp": {"weights": "int8"}}


def sharded() -> nn.Module:
    """Return a small classifier, cut into shards."""
    torch.manual_seed(0)  # FSDP2 does not bring rank 0's values to all
    net = nn.Sequential(
        nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
    )
    return fully_shard(net)


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(64, 2, generator=generator)
    return points, (points.square().sum(dim=1) < 1).long()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Generator) -> None:
    """Train for some steps; gradients are cut as ever."""
    for _ in range(60):
        points, labels = batch(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def main() -> None:
    """Train, save, go on in another model; say what went over the network."""
    dist.init_process_group("gloo")
    data = torch.Generator().manual_seed(dist.get_rank())

    model = sharded()
    handle = compressa.apply_to_fsdp(model, CONFIG)  # the line
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train(model, optimizer, data)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": states, "unsent": handle}, checkpoint_id=FOLDER)
    handle.close()

    model = sharded()
    with compressa.apply_to_fsdp(model, CONFIG) as handle:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        weights, states = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optim": states, "unsent": handle}, checkpoint_id=FOLDER)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
        train(model, optimizer, data)

        points, labels = batch(torch.Generator().manual_seed(100))
        right = (model(points).argmax(dim=1) == labels).float().mean()
        if dist.get_rank() == 0:
            print(f"{right:.0%} right; {handle.stats().ratio:.1f} times fewer bytes than float32")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
