# torchrun --nproc-per-node 2 examples/parameter_server.py
"""A parameter server on the workers' own ranks: gradients are pushed, their means are pulled."""

import torch
import torch.distributed as dist
from torch import nn

import compressa
from compressa.parameter_server import Worker


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(64, 2, generator=generator)
    return points, (points.square().sum(dim=1) < 1).long()


def train(worker: Worker, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train on this rank's own data, with the mean of all workers' gradients."""
    data = torch.Generator().manual_seed(dist.get_rank())
    parameters = dict(net.named_parameters())
    for _ in range(100):
        points, labels = batch(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(points), labels).backward()
        gradients = [p.grad for p in parameters.values() if p.grad is not None]
        worker.push(list(parameters), gradients)  # returns at once, as pull does
        means = worker.wait(worker.pull(list(parameters)))
        for name, parameter in parameters.items():
            parameter.grad = means[name]
        optimizer.step()


def main() -> None:
    """Train a small classifier; say whether all workers hold the same."""
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(
        nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
    )
    compressa.broadcast(net)  # rank 0's parameters for all
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    # Both ranks serve and train. servers=1, colocated=False gives the last rank to serving alone,
    # which then calls serve() in place of a training loop.
    node = compressa.open_parameter_server(dist.group.WORLD, shapes, {"compressor": "int8"})
    assert isinstance(node, Worker)
    with node as worker:
        train(worker, net, torch.optim.Adam(net.parameters(), lr=3e-3))

    points, labels = batch(torch.Generator().manual_seed(100))
    right = (net(points).argmax(dim=1) == labels).float().mean()
    own = torch.cat([p.detach().view(-1) for p in net.parameters()])
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    if dist.get_rank() == 0:
        alike = "the same" if all(own.equal(other) for other in every) else "other"
        print(f"{right:.0%} right; all workers hold {alike} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
