"""A training step with a hook, on each rank that torchrun starts."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa

dist.init_process_group("gloo")
net = nn.Linear(64, 64)
model = DistributedDataParallel(net)
handle = compressa.register_comm_hook(model, {"compressor": "int8"})
model(torch.ones(4, 64) * (1 + dist.get_rank())).square().mean().backward()
gradient = net.weight.grad
assert gradient is not None
assert bool(gradient.abs().sum() > 0)
everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, gradient)
assert all(torch.equal(other, gradient) for other in everyone)
handle.close()
dist.destroy_process_group()
