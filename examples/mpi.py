# mpiexec -n 2 python examples/mpi.py
"""Ranks that mpiexec starts, over MPI: int8 gradients, and no variable set by hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(64, 2, generator=generator)
    return points, (points.square().sum(dim=1) < 1).long()


def main() -> None:
    """Train a small classifier; say what went over MPI."""
    role = compressa.init_from_mpi()  # in place of torch.distributed.init_process_group
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 2))
    model = DistributedDataParallel(net)
    config = {"compressor": "int8", "exchange": {"transport": "mpi"}}
    handle = compressa.register_comm_hook(model, config)

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(role.rank)
    for _ in range(100):
        points, labels = batch(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()

    points, labels = batch(torch.Generator().manual_seed(100))
    right = (model(points).argmax(dim=1) == labels).float().mean()
    if role.rank == 0:
        ratio = handle.stats().ratio
        print(f"{role.size} ranks: {right:.0%} right; {ratio:.1f} times fewer bytes than float32")
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
