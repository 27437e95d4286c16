# torchrun --nproc-per-node 4 examples/hsdp.py
"""HSDP: two replicas, each cut into two shards; what replicas exchange is compressed."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import compressa

CONFIG = {
    "compressor": {"name": "powersgd", "rank": 8},  # of each shard of a weight
    "rules": [{"match": {"ndim": 1}, "compressor": "none"}],
}


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(64, 2, generator=generator)
    return points, (points.square().sum(dim=1) < 1).long()


def main() -> None:
    """Train a small classifier; say what went from replica to replica."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    torch.manual_seed(0)  # FSDP2 does not bring rank 0's values to all
    net = nn.Sequential(
        nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
    )
    model = fully_shard(net, mesh=mesh)
    handle = compressa.apply_to_fsdp(model, CONFIG)  # the line

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(100):
        points, labels = batch(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()

    points, labels = batch(torch.Generator().manual_seed(100))
    right = (model(points).argmax(dim=1) == labels).float().mean()
    if dist.get_rank() == 0:
        ratio = handle.stats().replicas.ratio
        print(f"{right:.0%} right; {ratio:.1f} times fewer bytes between replicas")
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
