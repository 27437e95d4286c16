"""Lanes: in which order a device does the engine's work, beside that of the training itself.

On a CPU, what a thread has done is done. On a GPU, a thread only enqueues: the engine's threads all
use one stream of high priority, so that compression goes between the kernels of backward instead
of after them. Events order it with the streams on which gradients are made and used, and no
thread waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from compressa.engine.cores import work_alone
from compressa.errors import BackendUnavailable
from compressa.kernels import KernelUnavailable, cuda

Mark = torch.cuda.Event | None
"""What a stream was given until then; None where nothing has to be waited for."""

_GPU_THREADS = 2  # enqueue only; one goes on while the other must wait for a number


class Lane:
    """The CPU's: nothing to order.

    Attributes:
        device: Where gradients are.
        threads: How many threads keep the device busy; None where that depends on the cores.
    """

    device = torch.device("cpu")
    threads: int | None = None

    def adopt(self) -> None:
        """Have the current thread, one of the engine's, work on this lane from now on."""
        work_alone()

    def current(self) -> AbstractContextManager[Any]:
        """Have what the caller does meanwhile done on this lane."""
        return nullcontext()

    def mark(self, tensors: Iterable[torch.Tensor]) -> Mark:
        """Note that tensors are ready, in the order of the caller's work, and will be used here."""
        return None

    def after(self, marks: Collection[Mark]) -> None:
        """What is given to this lane from now on comes after what was marked."""

    def join(self) -> None:
        """What the caller does from now on comes after what this lane was given."""

    @property
    def devices(self) -> list[torch.device] | None:
        """The devices of a future whose value is made on this lane."""
        return None


class CudaLane(Lane):
    """A stream of high priority.

    Args:
        device: The GPU.

    Raises:
        BackendUnavailable: Kernels can not run there; the message names the fix.
    """

    threads = _GPU_THREADS

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device), resources_for(f"kernels on {device}"):
            cuda.check_available()
        self.stream = torch.cuda.Stream(device, priority=-1)

    def adopt(self) -> None:
        """Besides, make the stream the thread's current one."""
        work_alone()
        torch.cuda.set_device(self.device)
        torch.cuda.set_stream(self.stream)

    def current(self) -> AbstractContextManager[Any]:
        """The stream is the caller's current one meanwhile."""
        context: AbstractContextManager[Any] = torch.cuda.stream(self.stream)
        return context

    def mark(self, tensors: Iterable[torch.Tensor]) -> Mark:
        """Record an event, and have torch's allocator know that the stream uses their memory."""
        for tensor in tensors:
            tensor.record_stream(self.stream)
        event: torch.cuda.Event = torch.cuda.current_stream(self.device).record_event()
        return event

    def after(self, marks: Collection[Mark]) -> None:
        """The stream waits for events."""
        for mark in marks:
            if mark is not None:
                self.stream.wait_event(mark)

    def join(self) -> None:
        """The caller's current stream waits for this one."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    @property
    def devices(self) -> list[torch.device]:
        """The GPU."""
        return [self.device]


@contextmanager
def resources_for(what: str) -> Iterator[None]:
    """Have what a device lacks meanwhile be told as an error that names the fix.

    Raises:
        BackendUnavailable: There is not enough memory, or no kernel.
    """
    try:
        yield
    except KernelUnavailable as error:
        raise BackendUnavailable(str(error)) from error
    except (MemoryError, torch.OutOfMemoryError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BackendUnavailable(
            f"there is no memory for {what} ({reason}); keep residuals in fewer bits "
            '(feedback.dtype = "bfloat16" or "int8"), or make the batch smaller'
        ) from error


def lane_of(device: torch.device) -> Lane:
    """Return a new lane on a device.

    Raises:
        BackendUnavailable: Kernels can not run there, or there are none for such a device.
    """
    if device.type == "cpu":
        return Lane()
    if device.type == "cuda":
        return CudaLane(device)
    raise BackendUnavailable(
        f"gradients are on a device of type {device.type!r}, and there are kernels for CPUs and "
        "NVIDIA GPUs only; move the model to one of these before you wrap it"
    )
