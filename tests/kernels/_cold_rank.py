"""A rank that registers and trains, and says what it compiled when: run by a test.

python tests/kernels/_cold_rank.py RANK SIZE STORE COMPRESSOR DEADLINE_S
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from _compilations import Compilations
from numba.core import event
from torch.nn.parallel import DistributedDataParallel

import compressa

_STEPS = 3


def main() -> None:
    """Train some steps of a small model, and print what was compiled when."""
    rank, size, store, compressor, deadline_s = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(int(rank))
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size)
    )
    model = DistributedDataParallel(torch.nn.Linear(500, 400))
    compiled = Compilations()
    event.register("numba:compile", compiled)
    settings = {"compressor": compressor, "exchange": {"deadline_s": float(deadline_s)}}
    handle = compressa.register_comm_hook(model, settings)
    registered = len(compiled.names)
    for _ in range(_STEPS):
        model(torch.randn(8, 500)).square().mean().backward()
    names = compiled.names
    print(json.dumps({"registration": names[:registered], "training": names[registered:]}))
    handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
