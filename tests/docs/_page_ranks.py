"""What a rank does with a page's Python."""

from __future__ import annotations

import contextlib
import io
import os
import socket
from collections.abc import Mapping, Sequence

import torch.distributed as dist


def run_page(*, environment: Mapping[str, str], folder: str, code: Sequence[list[str]]) -> str:
    """Run pieces of code one after the other in one namespace, as a launcher would start them.

    Args:
        environment: What the launcher tells this rank.
        folder: Where the page's files lie.
        code: Of each piece, where it stands and what it is.

    Returns:
        What was printed.
    """
    dist.destroy_process_group()  # the page makes its own
    os.chdir(folder)
    os.environ |= environment
    names = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for location, piece in code:
            exec(compile(piece, location, "exec", dont_inherit=True), names)
    return said.getvalue()


def as_by_torchrun(size: int) -> list[dict[str, dict[str, str]]]:
    """Return what torchrun tells each of some ranks, for `run_page`."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common = {**address, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    return [
        {"environment": {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}}
        for rank in range(size)
    ]


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
