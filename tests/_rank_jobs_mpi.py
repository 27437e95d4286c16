"""Jobs for ranks under mpiexec."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from _rank_jobs import train
from _rank_jobs_transport import Answers, message, opened, until

from compressa.collectives.base import BackendAllReduce, Exchange
from compressa.transports.base import Key
from compressa.transports.frames import FRAME_HEADER_BYTES, Frame, Kind


def sums() -> dict[str, Any]:
    """Sum small whole numbers of every type, of one element and of several pieces."""
    wrong = []
    with opened("mpi") as (transport, failures):
        rank, size, answers = transport.rank, transport.size, Answers()
        dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        for number, dtype in enumerate((*dtypes, torch.int8, torch.uint8, torch.int32)):
            for elems in (1, 3_000_000):
                key, tensor = Key(number, elems, 0), torch.full((elems,), rank + 1, dtype=dtype)
                transport.all_reduce(BackendAllReduce(tensor), answers.done(key))
                assert answers.wait(key) == {}
                due = torch.full((elems,), size * (size + 1) // 2, dtype=dtype)
                if not torch.equal(tensor, due):
                    wrong.append([str(dtype), elems])
    return {"wrong": wrong, "failures": len(failures)}


def empty_messages() -> list[int]:
    """Exchange nothing with one peer, one byte with the others."""
    with opened("mpi") as (transport, _):
        rank, size, answers, key = transport.rank, transport.size, Answers(), Key(0, 0, 0)
        sizes = {peer: int((rank + peer) % 3 > 0) for peer in range(size) if peer != rank}
        exchange = Exchange(
            {peer: message(rank, peer, 0, size) for peer, size in sizes.items()},
            {peer: torch.zeros(size, dtype=torch.uint8) for peer, size in sizes.items()},
        )
        transport.exchange(key, exchange, 0, answers.done(key))
        received = answers.wait(key)
        assert isinstance(received, dict)
        for peer, size in sizes.items():
            assert torch.equal(received[peer], message(peer, rank, 0, size))
        return [received[peer].numel() for peer in sizes]


def frame_of(*, size: int, says: int) -> str:
    """Rank 0 sends a frame of another length than it may have; return rank 1's failure."""
    with opened("mpi") as (transport, failures):
        own = transport.transport
        if own.rank == 0:
            memory = torch.zeros(size, dtype=torch.uint8).numpy()
            if size >= FRAME_HEADER_BYTES:
                Frame(Kind.DATA, 5, Key(0, 0, 0), says, 0, says).write(memory)
            request = own._comm.Isend(memory, 1, own._tag)
        until(lambda: failures or own.rank == 0)
        dist.barrier()
        if own.rank == 0:
            request.Test()
        return str(failures[0]) if failures else ""


def cost_of_waiting(*, seconds: float) -> dict[str, float]:
    """Return the share of a core that the transport's thread takes: idle, and waiting."""
    with opened("mpi") as (transport, _):
        answers, key, rank = Answers(), Key(0, 0, 0), transport.rank
        clock = time.pthread_getcpuclockid(
            next(t.ident for t in threading.enumerate() if t.name == "reactor")
        )

        def share() -> float:
            before_s = time.clock_gettime(clock)
            time.sleep(seconds)
            return (time.clock_gettime(clock) - before_s) / seconds

        idle = share()
        peer = 1 - rank
        if rank == 0:
            exchange = Exchange({}, {peer: torch.zeros(9, dtype=torch.uint8)})
            transport.exchange(key, exchange, 0, answers.done(key))
        waiting = share()
        dist.barrier()
        if rank == 1:
            exchange = Exchange({peer: message(1, 0, 0, 9)}, {})
            transport.exchange(key, exchange, 0, answers.done(key))
        answers.wait(key)
        return {"idle": idle, "waiting": waiting}


def train_over_both(*, configs: list[Any]) -> list[Any]:
    """Train with each configuration; return what the replicas ended with, and the losses."""
    results = [train(config=config, steps=4) for config in configs]
    return [[result["parameters"], result["losses"]] for result in results]


def alive_in_mpi(*, others: list[int]) -> int:
    """Talk over MPI with those who are left, on a communicator of theirs."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    # MPI counts them the other way round, see `_ranks_mpi`.
    group = world.Get_group().Incl([world.size - 1 - rank for rank in others])
    comm = world.Create_group(group)
    total = comm.allreduce(1)
    comm.Free()
    return int(total)
