"""One rank: `python -m harness.rank SOCKET MODULE:CLASS SECONDS [own-core]`.

The environment says who it is and where ranks meet, as torchrun's does. SOCKET is the driver's,
SECONDS the longest wait. The class is made of the line to the driver; what the driver may ask for
are its methods. With `own-core` the rank stays on a core.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from harness.wire import Wire

OWN_CORE = "own-core"


def main(path: str, served: str, deadline_s: float, *options: str) -> None:
    """Do what the driver asks for until it has no more.

    Args:
        path: The driver's socket.
        served: A class that is made of the `Wire`, as MODULE:CLASS.
        deadline_s: Longest wait of the process group.
        options: `OWN_CORE`, or nothing.
    """
    module, _, name = served.partition(":")
    make = getattr(importlib.import_module(module), name)
    if OWN_CORE in options:
        _take_core(int(os.environ["RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=deadline_s))
    gc.freeze()  # a collection, in what is measured or before it, need not look at what is imported
    wire = Wire(path, dist.get_rank())
    wire.serve(torch.__version__, make(wire))


def _take_core(rank: int) -> None:
    """Stay on a core, as a host with one would.

    Left to the kernel, the network work of both hosts gathers on one core at times, and a step
    takes as long as the rank that computes there.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:])
    # Not through Python's own exit: it would wait for ranks that may be gone already.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
