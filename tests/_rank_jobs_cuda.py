"""Jobs that train with gradients that an emulated GPU has, over real sockets.

The model and DDP stay on the CPU. What the hook is given says that it is on a GPU, and lies in the
memory of DDP's buckets; what it does there is as late as the waits between streams allow.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from _rank_jobs import train
from emulated_torch import DEVICE, as_cuda, current_stream, emulated_torch

import compressa.hooks.register
from compressa.hooks.ddp import DDPHook


class BucketOnGpu:
    """A bucket whose memory is a GPU's."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    def gradients(self) -> list[torch.Tensor]:
        return [as_cuda(gradient) for gradient in self._bucket.gradients()]

    def buffer(self) -> torch.Tensor:
        return as_cuda(self._bucket.buffer())

    def parameters(self) -> list[torch.Tensor]:
        return list(self._bucket.parameters())

    def is_last(self) -> bool:
        return bool(self._bucket.is_last())


_Future: Any = torch.futures.Future


class FutureOnGpu(_Future):
    """As torch's with devices: its value is ready at a place of the stream that sets it."""

    def __class_getitem__(cls, item: Any) -> Any:
        return _Future[item]  # DDP compares the hook's annotation

    def __init__(self, *, devices: Any) -> None:
        assert devices == [DEVICE]
        super().__init__()

    def set_result(self, result: Any) -> None:
        assert current_stream().priority == -1, "the result must be set on the engine's stream"
        with torch._C.DisableTorchFunctionSubclass():
            super().set_result(result.as_subclass(torch.Tensor))


def make_late(buffer: torch.Tensor) -> None:
    """Have values come only when the stream of backward comes to them."""
    values = buffer.clone()
    buffer.fill_(math.nan)
    current_stream().give(lambda: buffer.copy_(values))


@contextlib.contextmanager
def gradients_on_gpu(seed: int | None) -> Iterator[None]:
    """Have the hook find gradients on a GPU."""
    submit, wait = DDPHook.submit, DDPHook._wait

    def submit_on_gpu(hook: DDPHook, bucket: Any) -> Any:
        make_late(bucket.buffer())
        return submit(hook, BucketOnGpu(bucket))  # type: ignore[arg-type]

    def wait_for_gpu(hook: DDPHook) -> None:
        wait(hook)
        current_stream().synchronize()  # DDP, on the CPU, goes on with the values

    with contextlib.ExitStack() as stack:
        stack.enter_context(emulated_torch(seed))
        patches: dict[Any, dict[str, Any]] = {
            DDPHook: {"submit": submit_on_gpu, "_wait": wait_for_gpu},
            torch.futures: {"Future": FutureOnGpu},
            compressa.hooks.register: {"_device": lambda config, module: DEVICE},
        }
        for target, names in patches.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(target, name, value))
        yield


def train_on_gpu(*, seed: int | None = None, **options: Any) -> dict[str, Any]:
    """Train as `_rank_jobs.train` does."""
    with gradients_on_gpu(seed):
        return train(**options)


