"""Jobs with gradients that an emulated GPU has, over real sockets.

The model and DDP stay on the CPU. What the hook is given says that it is on a GPU, and lies in the
memory of DDP's buckets; what it does there is as late as the waits between streams allow.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from emulated_streams import DEVICE, UNFINISHED, Event, Stream, current_stream
from emulated_torch import as_cuda, emulated_torch, on_cpu

import compressa.hooks.opening
from compressa.engine.start import process_groups, startup
from compressa.hooks.ddp import DDPHook
from compressa.hooks.handle import Handle
from compressa.transports import nccl_lengths
from compressa.transports.staged import Staged

PIECE_BYTES = 600  # so that messages have several pieces
_A_MOMENT_S = 0.002


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
        if isinstance(result, BaseException):  # which `set_exception` sets
            return super().set_result(result)
        assert current_stream().priority == -1, "the result must be set on the engine's stream"
        with torch._C.DisableTorchFunctionSubclass():
            return super().set_result(result.as_subclass(torch.Tensor))


def make_late(buffer: torch.Tensor) -> None:
    """Have values come only when the stream of backward comes to them."""
    values = buffer.clone()
    buffer.fill_(math.nan)
    current_stream().give(lambda: buffer.copy_(values))


@contextlib.contextmanager
def gradients_on_gpu(seed: int | None) -> Iterator[None]:
    """Have the hook find gradients on a GPU."""
    submit, wait, state_dict = DDPHook.submit, DDPHook._wait, Handle.state_dict

    def submit_on_gpu(hook: DDPHook, bucket: Any) -> Any:
        make_late(bucket.buffer())
        return submit(hook, BucketOnGpu(bucket))

    def wait_for_gpu(hook: DDPHook) -> None:
        wait(hook)
        current_stream().synchronize()  # DDP, on the CPU, goes on with the values

    def state_on_cpu(handle: Handle) -> dict[str, Any]:
        return {key: value.cpu() for key, value in state_dict(handle).items()}

    with contextlib.ExitStack() as stack:
        stack.enter_context(emulated_torch(seed))
        patches: dict[Any, dict[str, Any]] = {
            DDPHook: {"submit": submit_on_gpu, "_wait": wait_for_gpu},
            Handle: {"state_dict": state_on_cpu},
            startup: {"Staged": partial(Staged, piece_bytes=PIECE_BYTES)},
            torch.futures: {"Future": FutureOnGpu},
            compressa.hooks.opening: {"_device": lambda config, tensors: DEVICE},
        }
        for target, names in patches.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(target, name, value))
        yield


def on_gpu(*, job: Callable[..., Any], seed: int | None = None, **options: Any) -> Any:
    """Do another job, such as `train`, with gradients on a GPU."""
    with gradients_on_gpu(seed), emulated_nccl():
        return job(**options)


class NcclWork:
    """What NCCL's stream has been given."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def wait(self) -> None:
        """The current stream waits; the caller does not."""
        current_stream().wait_event(self._event)


class NcclGroup:
    """A process group as NCCL's: a stream of its own carries out calls, with Gloo in its place.

    What can not be carried out holds up the stream until somebody aborts the group.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self._stream = Stream()
        self._carrier = ThreadPoolExecutor(1)
        self._aborted = False

    def rank(self) -> int:
        return self.group.rank()

    def size(self) -> int:
        return self.group.size()

    def abort(self) -> None:
        self._aborted = True
        self.end()
        self.group.abort()

    def end(self) -> None:
        self._carrier.shutdown(wait=False, cancel_futures=True)

    def allreduce(self, tensors: list[torch.Tensor]) -> NcclWork:
        inner = [on_cpu(tensor, share=True) for tensor in tensors]
        return self.give(lambda: self.group.allreduce(inner).wait())

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor) -> NcclWork:
        inner = on_cpu(output, share=True)
        sent = inner.chunk(self.size())[self.rank()]
        return self.give(lambda: self.group._allgather_base(inner, sent.clone()).wait())

    def alltoall(self, received: list[torch.Tensor], sent: list[torch.Tensor]) -> NcclWork:
        calls = []
        for call, buffers in ((self.group.recv, received), (self.group.send, sent)):
            inner = [on_cpu(buffer, share=True) for buffer in buffers]
            calls += [partial(call, [x], peer, 0) for peer, x in enumerate(inner) if x.numel()]
        return self.give(lambda: [work.wait() for work in [call() for call in calls]])

    def give(self, work: Callable[[], Any]) -> NcclWork:
        if self._aborted:
            raise RuntimeError("NCCL communicator was aborted")
        begun: list[Future[Any]] = []

        def carry() -> object:
            if self._aborted:
                return None
            if not begun:
                begun.append(self._carrier.submit(work))
            wait(begun, _A_MOMENT_S)
            failed = begun[0].done() and begun[0].exception() is not None
            return UNFINISHED if failed or not begun[0].done() else None

        self._stream.wait_event(current_stream().record_event())
        self._stream.give(carry)
        return NcclWork(self._stream.record_event())


class EmulatedProcessGroupNCCL:
    """Makes groups in place of torch's class."""

    Options = SimpleNamespace

    def __new__(cls, store: Any, rank: int, size: int, options: Any) -> Any:
        return NcclGroup(dist.ProcessGroupGloo(store, rank, size, options._timeout))


@contextlib.contextmanager
def emulated_nccl() -> Iterator[None]:
    """Have process groups of NCCL; messages of unknown length follow their lengths.

    The model's own is one, too, where exchanges go by it.
    """
    around, opened, lent = process_groups._around, startup.open_transport, list[NcclGroup]()

    def by_nccl(config: Any, group: Any, *others: Any, shared: bool) -> Any:
        if shared:
            lent.append(group := NcclGroup(group))
        return opened(config, group, *others, shared=shared)

    def made(backend: Any, *arguments: Any) -> Any:
        return backend if isinstance(backend, NcclGroup) else around(backend, *arguments)

    with (
        mock.patch.object(dist, "is_nccl_available", return_value=True),
        mock.patch.object(dist, "ProcessGroupNCCL", EmulatedProcessGroupNCCL, create=True),
        mock.patch.object(process_groups, "_around", made),
        mock.patch.object(startup, "open_transport", by_nccl),
        mock.patch.object(nccl_lengths, "PADDED_BYTES", 64),
    ):
        yield
    for group in lent:  # nobody aborts it
        group.end()
