# torchrun --nproc-per-node 2 examples/own_compressor/train.py
"""Trains with a compressor of one's own; first: pip install ./examples/own_compressor."""

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
    """Train a small classifier; say who compressed what."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
    )
    model = DistributedDataParallel(net)
    # Nothing is imported: the installed package says what its name stands for.
    handle = compressa.register_comm_hook(model, {"compressor": "highbyte"})

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
        row = handle.stats().compressors["highbyte"]
        print(f"{right:.0%} right; highbyte: {row.dense_bytes / row.payload_bytes:.1f} times fewer")
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
