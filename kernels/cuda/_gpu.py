"""Gpu: launches kernels on an NVIDIA GPU, by CuPy.

A source is compiled when one of its kernels is first launched (`_compiled.py`), with the options
that give the same bits as everywhere: no contraction of a * b + c, denormals kept, division and
square root rounded as IEEE says. All its kernels are loaded then: CUDA would load each at its
first launch, which may wait for kernels that are running, and is no part of a graph.

After that nothing but `Gpu.read` waits for the GPU, so that launches can be captured in a graph.
With ``COMPRESSA_DEBUG=launch`` in the environment, each launch is waited for: what goes wrong in a
kernel is told with its name, and not by whatever is called next.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._backends import KernelUnavailable
from ..device_array import DeviceArray
from ._compiled import machine_code
from ._device import Argument, Launch
from ._many import companion
from ._parameters import Kernel

_DEBUG = "launch"
_TO_HOST = 2  # cudaMemcpyDeviceToHost
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal
_NON_BLOCKING, _PRIORITY = 1, -1  # as the engine's streams, whose kernels these are
_KERNEL = re.compile(rb"\0\.text\.(\w+)(?=\0)")
"""A section of machine code that holds a kernel."""


class Host(Protocol):
    """Whose streams and memory are used: those of the library that the arrays come from."""

    def stream(self) -> int:
        """Return the handle of the stream that is current on this thread."""
        ...

    def empty(self, size_bytes: int) -> DeviceArray:
        """Return memory that is given out again, once let go, in the order of that stream."""
        ...


class _CuPyHost:
    """CuPy's own."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def empty(self, size_bytes: int) -> DeviceArray:
        memory = self._cupy.cuda.alloc(size_bytes)
        return DeviceArray(memory.ptr, size_bytes, np.dtype(np.uint8), memory)


class _Thread(threading.local):
    """Whether a thread has the GPU's context, which the driver launches in; where it captures."""

    has_context = False
    captures: int | None = None  # the handle of a stream


_hosts: list[Host] = []


def serve(host: Host) -> None:
    """Have all further launches use this library's streams and memory."""
    _hosts[:] = [host]


class Graph:
    """Launches that were captured; CUDA keeps what runs when this is let go.

    Args:
        runtime: CuPy's.
        executable: The handle of the graph.
        stream: Tells the current stream.
    """

    def __init__(self, runtime: Any, executable: int, stream: Callable[[], int]) -> None:
        self._launch, self._executable, self._stream = runtime.graphLaunch, executable, stream
        weakref.finalize(self, runtime.graphExecDestroy, executable).atexit = False

    def __call__(self) -> None:
        """Start all on the current stream."""
        self._launch(self._executable, self._stream())


class Gpu:
    """The current GPU.

    Raises:
        KernelUnavailable: There is none, or CuPy can not use it, or ``COMPRESSA_DEBUG`` asks for
            what there is not; the message names the fix.
    """

    def __init__(self) -> None:
        self._cupy = _cupy()
        self._host: Host = _CuPyHost(self._cupy)
        self._functions: dict[str, dict[str, Any]] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._thread = _Thread()
        self._captures_none = False
        device = self._cupy.cuda.Device()
        self.processors = int(device.attributes["MultiProcessorCount"])
        debug = os.environ.get("COMPRESSA_DEBUG", "")
        if debug not in ("", _DEBUG):
            raise KernelUnavailable(
                f"COMPRESSA_DEBUG is {debug!r}, and may be {_DEBUG!r} only; unset it"
            )
        self._start = self._start_and_wait if debug else Kernel.start

    def launch(self, source: str, name: str, blocks: int, arguments: tuple[Argument, ...]) -> None:
        """See `Device.launch`."""
        host = _hosts[0] if _hosts else self._host
        kernel = self._kernel(source, name, arguments)
        if not self._thread.has_context:
            self._cupy.cuda.runtime.memGetInfo()  # as CuPy does: any call gives it to the thread
            self._thread.has_context = True
        self._start(kernel, blocks, arguments, host.stream())

    def empty(self, elems: int, dtype: npt.DTypeLike) -> Any:
        """See `Device.empty`.

        Raises:
            MemoryError: The GPU has not so much left.
        """
        host, kind = _hosts[0] if _hosts else self._host, np.dtype(dtype)
        size_bytes = elems * kind.itemsize
        try:
            memory = host.empty(max(size_bytes, 1))
            return DeviceArray(memory.pointer, elems, kind, memory.owner)
        except Exception as error:
            if "out of memory" not in str(error).lower():
                raise
            raise MemoryError(
                f"the GPU has no {size_bytes:,} bytes left for a kernel; make the buckets or the "
                "model smaller, or free memory before the backward pass"
            ) from error

    def read(self, array: Any) -> int:
        """See `Device.read`."""
        host, runtime = _hosts[0] if _hosts else self._host, self._cupy.cuda.runtime
        number, stream = np.empty(1, array.dtype), host.stream()
        address, size_bytes = number.ctypes.data, number.nbytes
        runtime.memcpyAsync(address, array.pointer, size_bytes, _TO_HOST, stream)
        runtime.streamSynchronize(stream)
        return int(number[0])

    def graph(self, launches: Sequence[Launch]) -> Graph | None:
        """See `Device.graph`; what can not be captured once is not tried again, with a warning."""
        if self._start is not Kernel.start or self._captures_none:
            return None
        try:
            return Graph(self._cupy.cuda.runtime, self._captured(launches), self._stream)
        except Exception as error:
            self._captures_none = True
            warnings.warn(
                f"no CUDA graph could be captured ({error}), so units go on by one launch after "
                "the other; leave engine.cuda_graphs out, and please report what is in brackets",
                RuntimeWarning,
                stacklevel=2,
            )
            return None

    def _captured(self, launches: Sequence[Launch]) -> int:
        """Capture on a stream of the thread's own, to which nobody else gives anything."""
        runtime, thread = self._cupy.cuda.runtime, self._thread
        if thread.captures is None:
            thread.captures = runtime.streamCreateWithPriority(_NON_BLOCKING, _PRIORITY)
        runtime.streamBeginCapture(thread.captures, _THREAD_LOCAL)
        try:
            for source, name, blocks, arguments in launches:
                self._kernel(source, name, arguments).start(blocks, arguments, thread.captures)
        except BaseException:
            with suppress(Exception):  # what was captured until then
                runtime.graphDestroy(runtime.streamEndCapture(thread.captures))
            raise
        graph = runtime.streamEndCapture(thread.captures)
        try:
            return int(runtime.graphInstantiate(graph))
        finally:
            runtime.graphDestroy(graph)

    def _stream(self) -> int:
        return (_hosts[0] if _hosts else self._host).stream()

    def _kernel(self, source: str, name: str, arguments: tuple[Argument, ...]) -> Kernel:
        kernel = self._kernels.get((source, name))
        if kernel is None:
            function, start = self._loaded(source)[name], self._cupy.cuda.driver.launchKernel
            kernel = self._kernels[source, name] = Kernel(function, start, arguments)
        return kernel

    def _start_and_wait(
        self, kernel: Kernel, blocks: int, arguments: tuple[Argument, ...], stream: int
    ) -> None:
        try:
            kernel.start(blocks, arguments, stream)
            self._cupy.cuda.runtime.streamSynchronize(stream)
        except Exception as error:
            raise RuntimeError(f"the kernel {self._name_of(kernel)} failed: {error}") from error

    def _name_of(self, kernel: Kernel) -> str:
        (found,) = (name for name, known in self._kernels.items() if known is kernel)
        return "{1} of {0}.cu".format(*found)

    def prepare(self, source: str) -> None:
        """Compile a source and load all its kernels, unless that has been done."""
        self._loaded(source)

    def _loaded(self, source: str) -> dict[str, Any]:
        functions = self._functions.get(source)
        if functions is None:
            path = machine_code(self._cupy, source)
            module = self._cupy.RawModule(path=str(path))
            names = {found.decode() for found in _KERNEL.findall(path.read_bytes())}
            functions = {name: module.get_function(name).kernel for name in sorted(names)}
            self._functions[source] = functions
            if other := companion(source):  # which of the two is launched depends on other vectors
                self._loaded(other)
        return functions


@cache
def _cupy() -> ModuleType:
    """CuPy, if it is there and sees a GPU; what was found once is not asked for again."""
    try:
        import cupy
    except ImportError as error:
        raise KernelUnavailable(
            f"no kernel for device 'cuda' without CuPy ({error}); pip install compressa[cuda12] or "
            "compressa[cuda13], whichever torch.version.cuda says, or move the arrays to the CPU"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise KernelUnavailable(
            f"CuPy sees no GPU ({error}); look at nvidia-smi, and install the CuPy made for "
            "the CUDA of the driver (compressa[cuda12] or compressa[cuda13])"
        ) from error
    if not count:
        raise KernelUnavailable("CuPy sees no GPU; look at CUDA_VISIBLE_DEVICES and nvidia-smi")
    library: ModuleType = cupy
    return library


@cache
def _numbered(number: int) -> Gpu:
    return Gpu()


def current() -> Gpu:
    """Return the GPU that is current on this thread.

    Raises:
        KernelUnavailable: See `Gpu`.
    """
    return _numbered(int(_cupy().cuda.runtime.getDevice()))
