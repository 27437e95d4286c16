"""Device streams: the order in which a device does the engine's work, beside that of training.

On a CPU, what a thread has done is done. On a GPU, a thread only enqueues: the engine's threads
use two streams of high priority, so that compression goes between the kernels of backward instead
of after them. What has arrived is decoded on the main stream, which waits for exchanges. What a
unit does before its first exchange is done ahead, on a stream that waits for none: so the next
unit is encoded while the last one is on the wire. A step's work ahead comes after all that the main
stream did for the last step, and what a unit does on the main stream after what it did ahead.
Whatever else touches state is done on the main stream.

Events order both with the streams on which gradients are made and used, and no thread waits for the
GPU, but for a number that it can not go on without. What has arrived is checked there, too: what
the checks have found is judged when the GPU has come so far, which is after the next kernels have
worked on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from compressa.arrays import as_array
from compressa.engine.start.cores import work_alone
from compressa.errors import BackendUnavailable, ConfigError, PayloadError, StateError
from compressa.kernels import KernelUnavailable, cuda
from compressa.transports.gpu_threads import on, work_on

Mark = torch.cuda.Event | None
"""What a stream was given until then; None where nothing has to be waited for."""

Ticket = Future[Mark]
"""Done when work was given to a device; its value is a mark that comes after it."""

_GPU_THREADS = 2  # enqueue only; one goes on while the other must wait for a number
_NOTHING = nullcontext()
LACKS = (KernelUnavailable, MemoryError, torch.OutOfMemoryError)
"""What is raised where a device has not enough memory, or no kernel; see `lacking`."""


class DeviceStream:
    """The CPU's: nothing to order. Calls are for any thread.

    Attributes:
        device: Where gradients are.
        threads: How many threads keep the device busy; None where that depends on the cores.
        asynchronous: Whether there are answers for `check_received` to look at.
        devices: The devices of a future whose value is made on this device stream.
    """

    device = torch.device("cpu")
    threads: int | None = None
    asynchronous = False
    devices: list[torch.device] | None = None

    def check(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Check where gradients are.

        Args:
            gradients: By parameter name.

        Raises:
            StateError: One is on another device; the message names it.
        """
        for name, gradient in gradients.items():
            if gradient.device != self.device:
                raise StateError(
                    f"the gradient of {name!r} is on {gradient.device}, and this engine works on "
                    f"{self.device}; move the model before you register, and leave it there"
                )

    def adopt(self) -> None:
        """Have the current thread, one of the engine's, work on this device stream from now on."""
        work_alone()

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which what the caller's thread does is done on the main stream."""
        return _NOTHING

    def ahead(self) -> AbstractContextManager[Any]:
        """Return a context in which what the caller's thread does waits for no exchange.

        Memory that is allocated there, and used on the main stream, must be kept until the next
        step begins, or be told to torch by `record_stream`.
        """
        return _NOTHING

    def follow(self, mark: Mark) -> None:
        """Have the main stream come after a mark of the caller's."""

    def catch_up(self) -> None:
        """Have what is done ahead from now on come after all that the main stream was given."""

    def mark(self, tensors: Iterable[torch.Tensor]) -> Mark:
        """Note that tensors are ready, in the order of the caller's work, and will be used here.

        Returns:
            For `after`: what the caller's stream was given until now.
        """
        return None

    def after(self, marks: Collection[Mark]) -> None:
        """Have what the caller does from now on come after marks, and after no more; nobody waits.

        An engine's thread works on the main stream, but for what it does `ahead`.
        """

    def note(self) -> Mark:
        """Return a mark of what the main stream was given until now."""
        return None

    def join(self) -> None:
        """Have what the caller does from now on come after all that was given here until now."""

    def checking(self, what: str) -> AbstractContextManager[Any]:
        """Have checks of what arrived meanwhile answered when it suits the device.

        On a CPU a check raises at once, as without this.

        Args:
            what: Whatever is decoded, for the message of `check_received`.
        """
        return _NOTHING

    def check_received(self, *, wait: bool = False) -> None:
        """Look at the answers that have come; from any thread.

        Args:
            wait: For all others to come, too.

        Raises:
            PayloadError: A check has found a fault.
        """


class _Answer:
    """Whether checks have found a fault: a number on the GPU, and what is known of it.

    It stays 0 as long as all is well, so that it can serve again and again.
    """

    def __init__(self, device: torch.device) -> None:
        self.number = torch.zeros(1, dtype=torch.int64, device=device)
        self.what = ""
        self._known = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._come = torch.cuda.Event()

    def fetch(self, stream: torch.cuda.Stream) -> None:
        """Have the stream tell it after all that it was given."""
        self._known.copy_(self.number, non_blocking=True)
        self._come.record(stream)

    def has_come(self, wait: bool) -> bool:
        if wait:
            self._come.synchronize()
        return wait or self._come.query()

    @property
    def fault(self) -> bool:
        return bool(self._known.item())


class CudaDeviceStream(DeviceStream):
    """Two streams of high priority.

    Args:
        device: The GPU.
        stream: The main stream; a new one if not given.
        graphs: Whether what units launch again and again is captured as CUDA graphs.

    Attributes:
        stream: The main stream, as torch's.

    Raises:
        BackendUnavailable: Kernels can not run there; the message names the fix.
    """

    threads = _GPU_THREADS
    asynchronous = True

    def __init__(
        self,
        device: torch.device,
        stream: torch.cuda.Stream | None = None,
        *,
        graphs: bool = False,
    ) -> None:
        self.device, self.devices = device, [device]
        self._launching = cuda.graphs if graphs else nullcontext
        with torch.cuda.device(device), resources_for(f"kernels on {device}"):
            cuda.check_available()
        self.stream = stream or torch.cuda.Stream(device, priority=-1)
        self._ahead = torch.cuda.Stream(device, priority=-1)
        self._lock = threading.Lock()
        self._due: deque[_Answer] = deque()
        self._free: list[_Answer] = []

    def check(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Check where gradients are, and that no graph is captured on the caller's stream.

        Args:
            gradients: By parameter name.

        Raises:
            StateError: One is on another device, or the stream is captured.
        """
        if torch.cuda.is_current_stream_capturing():
            raise StateError(
                "gradients came while their stream is captured in a CUDA graph, and exchanges can "
                "be no part of one; capture parts of the model by "
                "torch.cuda.make_graphed_callables before you wrap it, whose replays are combined "
                "as ever, or capture backward passes under no_sync() only"
            )
        super().check(gradients)

    def adopt(self) -> None:
        """Make device and main stream the thread's current ones, and use no further threads."""
        work_alone()
        work_on(self.device)
        torch.cuda.set_stream(self.stream)

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which the main stream is the caller's current one."""
        return on(self.stream)

    def ahead(self) -> AbstractContextManager[Any]:
        """Return a context in which the stream that waits for no exchange is the current one."""
        return on(self._ahead)

    def follow(self, mark: Mark) -> None:
        """Have the main stream wait for an event; the host does not."""
        if mark is not None:
            self.stream.wait_event(mark)

    def catch_up(self) -> None:
        """Have the stream that waits for no exchange wait once for what the main one was given."""
        self._ahead.wait_stream(self.stream)

    def mark(self, tensors: Iterable[torch.Tensor]) -> Mark:
        """Record an event on the caller's current stream; see `DeviceStream.mark`.

        torch's allocator is told that both streams use the tensors' memory, too: once for each
        storage, of which a bucket has one.
        """
        stored = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
        for tensor in stored.values():
            tensor.record_stream(self._ahead)
            tensor.record_stream(self.stream)
        event: torch.cuda.Event = torch.cuda.current_stream(self.device.index).record_event()
        return event

    def after(self, marks: Collection[Mark]) -> None:
        """Have the caller's current stream wait for events; the host does not."""
        stream = torch.cuda.current_stream(self.device.index)
        for mark in marks:
            if mark is not None:
                stream.wait_event(mark)

    def note(self) -> Mark:
        """Record an event on the main stream."""
        event: torch.cuda.Event = self.stream.record_event()
        return event

    def join(self) -> None:
        """Have the caller's current stream wait for the main one; the host does not."""
        torch.cuda.current_stream(self.device.index).wait_stream(self.stream)

    @contextmanager
    def checking(self, what: str) -> Iterator[None]:
        """Have no check of this thread, one of the engine's, wait; all of them share an answer.

        A check's kernels set a number on the GPU; `check_received` looks at it, unless what is done
        meanwhile fails.
        """
        made: list[_Answer] = []

        def make() -> Any:
            with self._lock:
                made.append(self._free.pop() if self._free else _Answer(self.device))
            return as_array(made[0].number).view(np.uint64)

        try:
            with cuda.answers_later(make), self._launching():
                yield
        except BaseException:  # which tells what was wrong
            for answer in made:
                answer.number.zero_()
            raise
        finally:
            for answer in made:
                answer.what = what
                answer.fetch(torch.cuda.current_stream(self.device.index))
                with self._lock:
                    self._due.append(answer)

    def check_received(self, *, wait: bool = False) -> None:
        """Look at the answers in the order in which they come; from any thread.

        Args:
            wait: For the GPU to have come to all of them; else to those that it has come to.

        Raises:
            PayloadError: A check has found a fault; the message says in what.
        """
        while (answer := self._next_due()) is not None:
            if not answer.has_come(wait):  # not under the lock: others must go on meanwhile
                with self._lock:
                    self._due.appendleft(answer)
                return
            if answer.fault:
                raise PayloadError(
                    f"what arrived for {answer.what} failed a check on the GPU: its header or "
                    "its indices are not what is due; that step's gradients are not to be "
                    "trusted: go on from an earlier checkpoint"
                )
            with self._lock:
                self._free.append(answer)

    def _next_due(self) -> _Answer | None:
        with self._lock:
            return self._due.popleft() if self._due else None


def reached(mark: Mark) -> bool:
    """Return whether the device has come to a mark; nobody waits."""
    return mark is None or bool(mark.query())


@contextmanager
def resources_for(what: str) -> Iterator[None]:
    """Have what a device lacks meanwhile be told as an error that names the fix.

    Args:
        what: What memory is needed for, for the message.

    Raises:
        BackendUnavailable: There is not enough memory, or no kernel.
    """
    try:
        yield
    except LACKS as error:
        raise lacking(error, what) from error


def lacking(error: Exception, what: str) -> BackendUnavailable:
    """Name the fix for what a device lacks.

    Args:
        error: One of `LACKS`.
        what: What the memory is for.
    """
    if isinstance(error, KernelUnavailable):
        return BackendUnavailable(str(error))
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return BackendUnavailable(
        f"there is no memory for {what} ({reason}); keep residuals in fewer bits "
        '(feedback.dtype = "bfloat16" or "int8"), or make the batch smaller'
    )


def device_stream_of(device: torch.device, *, graphs: bool = False) -> DeviceStream:
    """Return a new device stream on a device.

    Args:
        device: A CPU, or one GPU by its number.
        graphs: As `CudaDeviceStream` takes it.

    Raises:
        BackendUnavailable: Kernels can not run there, or there are none for such a device.
        ConfigError: There are no graphs on a CPU.
    """
    if device.type == "cuda":
        return CudaDeviceStream(device, graphs=graphs)
    if graphs:
        raise ConfigError(
            f"engine.cuda_graphs = true, and the gradients are on a device of type {device.type!r},"
            " which has no CUDA graphs; leave it out, or move the model to an NVIDIA GPU first"
        )
    if device.type == "cpu":
        return DeviceStream()
    raise BackendUnavailable(
        f"gradients are on a device of type {device.type!r}, and there are kernels for CPUs and "
        "NVIDIA GPUs only; move the model to one of these before you wrap it"
    )
