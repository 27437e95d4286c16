# Started by the driver on every rank, not by hand:
#   python experiments/lab/worker.py SOCKET LOG
"""One rank: joins the process group once, then runs the cells that the driver sends.

The environment names the rank and the meeting point as ``torchrun`` would (RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME). Standard output and error go to LOG, whose last
lines the driver shows when a rank dies; requests and answers go over the Unix socket SOCKET.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lab.cells import TimeCell, TrainCell
    from lab.channel import Channel

PROGRESS_EVERY = 10
GROUP_TIMEOUT = timedelta(minutes=10)


def _redirect_output(log: Path) -> None:
    """Both standard streams to ``log``, before the first import that could print or fail."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _join_group() -> int:
    """Joins the default process group over Gloo, with one thread per rank; returns the rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
    return dist.get_rank()


def _run_cell(cell: TrainCell | TimeCell, rank: int, channel: Channel) -> None:
    from lab.cells import REQUESTS, Armed, Failed, Go, Progress
    from lab.timing import measure
    from lab.training import train

    def progress(step: int) -> None:
        if rank == 0 and step % PROGRESS_EVERY == 0:
            channel.send(Progress(step=step))

    def edge(which: Literal["start", "end"]) -> None:
        channel.send(Armed(rank=rank, edge=which))
        answer = REQUESTS.validate_json(channel.receive())
        if not isinstance(answer, Go):
            raise RuntimeError(f"waited for go, the driver sent {answer.kind}")

    try:
        reply = train(cell, progress) if cell.kind == "train" else measure(cell, edge)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        channel.send(Failed(rank=rank, error=text, traceback=traceback.format_exc()))
    else:
        channel.send(reply)
    finally:
        gc.collect()  # a cell's model must not be there in the next one


def main(socket_path: Path) -> None:
    """Serves cells until the driver says quit, or goes away."""
    from lab.cells import REQUESTS, Go, Hello, Quit
    from lab.channel import Channel, ChannelClosed

    channel = Channel.connect(socket_path)
    rank = _join_group()
    try:
        channel.send(Hello(rank=rank))
        while True:
            request = REQUESTS.validate_json(channel.receive())
            if isinstance(request, Quit):
                return
            if isinstance(request, Go):
                raise RuntimeError("go without a cell")
            _run_cell(request, rank, channel)
    except ChannelClosed:
        return  # the driver is gone, and with it the reason to be here


if __name__ == "__main__":
    _redirect_output(Path(sys.argv[2]))
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `lab` as a package, not its inside
    main(Path(sys.argv[1]))
    # Not through Python's own exit: after a failed cell, other ranks may hold a group's teardown.
    sys.stdout.flush()
    os._exit(0)
