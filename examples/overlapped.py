# torchrun --nproc-per-node 2 examples/overlapped.py
"""Communication goes on in the next forward pass, past the end of backward."""

import torch
import torch.distributed as dist
from torch import nn

import compressa


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(64, 2, generator=generator)
    return points, (points.square().sum(dim=1) < 1).long()


def main() -> None:
    """Train a small classifier; say what went over the network, and how."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(
        nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
    )
    compressa.broadcast(net)  # rank 0's parameters for all
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    # In place of DistributedDataParallel and the hook. Left out, overlap is decided by measuring
    # it; True always defers updates to the next forward pass.
    model = compressa.OverlappedDataParallel(net, optimizer, {"compressor": "int8"}, overlap=True)

    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(100):
        points, labels = batch(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()  # returns; each parameter is updated when its mean gradient has come

    points, labels = batch(torch.Generator().manual_seed(100))
    right = (model(points).argmax(dim=1) == labels).float().mean()  # waits for what is due
    stats = model.handle.stats()
    if dist.get_rank() == 0:
        deferring = stats.overlap is not None and stats.overlap.deferring
        how = "deferred" if deferring else "done at once"
        print(f"{right:.0%} right; {stats.ratio:.1f} times fewer bytes; updates are {how}")
    model.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
