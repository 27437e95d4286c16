"""Jobs for a real GPU."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _rank_jobs_conform import ManyWeights, digest, gradients
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.config import Config
from compressa.engine.start import process_groups
from compressa.transports.base import Key
from compressa.transports.nccl import NcclTransport


def train_over_nccl(*, config: Any, steps: int) -> list[list[str]]:
    """Train a world of one whose process group is NCCL's; return digests of the gradients."""
    torch.cuda.set_device(0)
    group = dist.new_group([0], backend="nccl")
    net = ManyWeights(3).cuda()
    wrapped = DistributedDataParallel(net, device_ids=[0], process_group=group)
    handle = compressa.register_comm_hook(wrapped, config)
    result = []
    for step in range(steps):
        net.zero_grad()
        wrapped(*(factor.cuda() for factor in gradients(3, 0, step))).backward()
        result.append([digest(weight.grad) for weight in net.weights])
    handle.close()
    return result


def send_over_nccl(*, sizes: list[int]) -> list[bool]:
    """Have NCCL carry messages of a rank to itself, exact and not; return what arrived whole."""
    torch.cuda.set_device(0)
    stream = torch.cuda.Stream(priority=-1)
    errors: list[Any] = []
    assert dist.group.WORLD is not None
    group = process_groups.new_group(Config(), dist.group.WORLD, "nccl", "a test")
    transport = NcclTransport(group, 1, stream, 60.0, errors.append, lambda seconds: None)
    transport.attach(mock.Mock(post=lambda callback: callback()))
    whole = []
    with torch.cuda.stream(stream):
        for number, size in enumerate(sizes):
            for exact in (True, False):
                results: list[Any] = []
                data = torch.arange(size, device="cuda").to(torch.uint8)
                room = torch.zeros(size if exact else size + 9, dtype=torch.uint8, device="cuda")
                exchange = Exchange({0: data}, {0: room}, exact, {0: room.numel()})
                transport.exchange(Key(0, number, int(exact)), exchange, 0, results.append)
                while not results:
                    stream.synchronize()
                whole.append(torch.equal(results[0][0], data))
        tensor = torch.ones(1000, device="cuda")
        transport.all_reduce(BackendAllReduce(tensor), lambda result: None)
        whole.append(bool((tensor == 1).all()))
    stream.synchronize()
    transport.close(5.0)
    assert not errors
    process_groups.release_groups([group])
    return whole
