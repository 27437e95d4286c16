"""A training that can be killed at any moment: it goes on from its last whole checkpoint."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compressa

EVERY = 20  # steps from one checkpoint to the next
_PAUSE_S = 0.01  # so that a second is 100 steps at most, on any machine


def train(folder: str, compressor: str, steps: int) -> str:
    """Train to the last step, from where `folder` says; return a digest of the parameters.

    Args:
        folder: Shared by all ranks; holds the checkpoints, and `latest`, which names the last
            whole one.
        compressor: Or "plain", for a model without compressa.
        steps: How many in all.
    """
    root, rank = Path(folder), dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    )
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)
    handle = None
    if compressor != "plain":
        config: dict[str, Any] = {"compressor": compressor, "dense_below": {"elems": 0}}
        handle = compressa.register_comm_hook(model, config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    latest = root / "latest"
    first = int(latest.read_text()) if latest.exists() else 0
    if first:
        saved = torch.load(root / str(first) / "model.pt", weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if handle is not None:
            handle.load(root / str(first) / "compressa")
            assert handle.next_step == first
    for step in range(first, steps):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        (model(x) - x[:, :4].sin()).square().mean().backward()
        optimizer.step()
        time.sleep(_PAUSE_S)
        if (step + 1) % EVERY == 0:
            _save(root, step + 1, {"model": net, "optimizer": optimizer}, handle)
    if handle is not None:
        handle.close()
    bits = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    return hashlib.sha256(bits).hexdigest()


def _save(root: Path, step: int, parts: dict[str, Any], handle: compressa.Handle | None) -> None:
    """Write a checkpoint, and name it only when all ranks have written theirs."""
    folder = root / str(step)
    folder.mkdir(exist_ok=True)
    if handle is not None:
        handle.save(folder / "compressa")
    if dist.get_rank() == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "model.pt")
        (root / "latest.new").write_text(str(step))
        os.replace(root / "latest.new", root / "latest")
    dist.barrier()


def main() -> None:
    """Under torchrun: say that this worker is there, train, say what came of it."""
    folder, compressor, steps = sys.argv[1:]
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    torch.set_num_threads(1)
    Path(folder, f"pid-{attempt}-{rank}").write_text(str(os.getpid()))
    dist.init_process_group("gloo")
    digest = train(folder, compressor, int(steps))
    Path(folder, f"digest-{rank}").write_text(digest)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
