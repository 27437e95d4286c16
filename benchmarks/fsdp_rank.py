"""One rank that trains a GPT sharded by FSDP2, by several methods in turns; for `harness.rank`."""

from __future__ import annotations

import gc
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

import compressa
from benchmarks.steps.models import GPT
from harness.wire import Wire

FLOAT32, GRADIENTS, INT8 = "FSDP2, float32", "int8 gradients", "int8 gradients and weights"
METHODS: Mapping[str, Mapping[str, Any] | None] = {
    FLOAT32: None,
    GRADIENTS: {"compressor": "int8"},
    INT8: {"compressor": "int8", "fsdp": {"weights": "int8"}},
}
"""By name, what `apply_to_fsdp` is told; None leaves FSDP2 as it is."""

WINDOWS = 4
_HELD_BACK = 64  # windows that nobody trains on
_RATE = 1e-3


def text() -> Tensor:
    """Return the source text of the standard library's own modules, of ASCII characters, uint8."""
    folder = Path(sysconfig.get_path("stdlib"))
    sources = b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))
    return torch.frombuffer(
        bytearray(sources.decode().encode("ascii", "replace")), dtype=torch.uint8
    )


def gpt() -> GPT:
    """Return the model, of some four million parameters, the same on all ranks."""
    torch.manual_seed(0)
    return GPT()


class _Training:
    """A model, and how it is trained.

    Args:
        config: For `apply_to_fsdp`; None for FSDP2 alone.
        windows: Of the text, each with a character more than the model takes.
        stack: Closes what is opened.
    """

    def __init__(self, config: Mapping[str, Any] | None, windows: Tensor, stack: ExitStack) -> None:
        self._model = gpt()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in self._model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self._model, mesh=mesh)
        if config is not None:
            stack.enter_context(compressa.apply_to_fsdp(self._model, config))
        self._optimizer = AdamW(self._model.parameters(), lr=_RATE)
        self._held_back, self._windows = windows[:_HELD_BACK], windows[_HELD_BACK:]
        self._drawn = torch.Generator().manual_seed(1 + dist.get_rank())

    def step(self) -> float:
        """Train on a batch; return how long it took, in seconds, the wait for others included."""
        chosen = torch.randint(len(self._windows), (WINDOWS,), generator=self._drawn)
        begun_s = time.perf_counter()
        self._optimizer.zero_grad()
        self._loss(self._windows[chosen]).backward()
        self._optimizer.step()
        return time.perf_counter() - begun_s

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss on the windows that are held back, the same ones on all ranks."""
        parts = [float(self._loss(part)) for part in self._held_back.split(WINDOWS)]
        return sum(parts) / len(parts)

    def _loss(self, windows: Tensor) -> Tensor:
        tokens = windows.long()
        return nn.functional.cross_entropy(self._model(tokens[:, :-1]), tokens[:, 1:].flatten())


class Training:
    """What such a rank can be asked for."""

    def __init__(self, wire: Wire) -> None:
        self._stack = ExitStack()
        self._trained: dict[str, _Training] = {}

    def open(self, methods: Sequence[str]) -> dict[str, int]:
        """Begin by several methods; tell how many parameters there are."""
        characters, model = text(), gpt()
        length = model.position.num_embeddings + 1
        windows = characters[: len(characters) // length * length].view(-1, length)
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
        for name in methods:
            self._trained[name] = _Training(METHODS[name], windows[order], self._stack)
        return {"parameters": sum(p.numel() for p in model.parameters())}

    def turn(self, method: str, steps: int) -> dict[str, list[float]]:
        """Train some steps by a method; tell how long each of them took."""
        gc.collect()
        dist.barrier()
        return {"step_s": [self._trained[method].step() for _ in range(steps)]}

    def loss(self, method: str) -> dict[str, float]:
        """Tell the loss of what a method has trained, on text that it has not seen."""
        return {"loss": self._trained[method].loss()}

    def close(self) -> None:
        """End what `open` has begun."""
        self._trained.clear()
        dist.barrier()
        self._stack.close()
