# torchrun --nproc-per-node 2 examples/pipeline.py
"""A pipeline of two stages, whose activations and gradients cross as int8."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import compressa

CONFIG = {"pipeline": {"activations": "int8", "gradients": "int8"}}


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(64, 2, generator=generator)
    return points, (points.square().sum(dim=1) < 1).long()


def part(stage: int) -> nn.Module:
    """Build the half of the network that a rank holds."""
    torch.manual_seed(stage)
    if stage == 0:
        return nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256))
    return nn.Sequential(nn.ReLU(), nn.Linear(256, 2))


def main() -> None:
    """Train; say what crossed the edge."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = part(rank)
    stage = PipelineStage(net, rank, 2, torch.device("cpu"))
    edge = compressa.compress_edge(stage, CONFIG)  # the line
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy)

    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(0)  # all ranks draw the same batches
    for _ in range(100):
        points, labels = batch(data)
        optimizer.zero_grad()
        schedule.step(points) if rank == 0 else schedule.step(target=labels)
        optimizer.step()

    points, labels = batch(torch.Generator().manual_seed(100))
    outputs = schedule.eval(points) if rank == 0 else schedule.eval(target=labels)
    if rank == 1:
        right = (outputs.argmax(dim=1) == labels).float().mean()
        print(f"{right:.0%} right; gradients took {edge.gradients.ratio:.1f} times fewer bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
