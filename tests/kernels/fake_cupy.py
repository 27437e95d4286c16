"""A CuPy that only takes notes of what is launched."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from compressa.kernels.cuda import _gpu
from compressa.kernels.cuda._device import OPTIONS

NAMES = (
    "clear_answer",
    "find_flushed",
    "quantize_8_of_256",
    "quantize_8_by_ctas",
    "quantize_many_4_of_128",
    "sum_many_8_by_warps",
)
CODE = b"".join(b"\0.text." + name.encode() for name in NAMES) + b"\0machine code"


class FakeCuPy(SimpleNamespace):
    """As much of CuPy as launches use.

    Attributes:
        launched: Name, grid, block and stream of every launch.
        compiled: Name of every source that was compiled.
        captures: What was launched on streams that are captured.
        graphs: What was captured, and not let go.
        executables: What can be started of it.
        no_graph: Why nothing can be.
        does: What kernels of some names do, given the address of their parameters' addresses.
        names: Name of every kernel that was loaded.
        loaded: Every file of machine code that was loaded.
        bound: The threads that have the GPU's context.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[tuple[Any, ...]] = []
        self.compiled: list[str] = []
        self.does: dict[str, Callable[[int], object]] = {}
        self.bound: set[int] = set()
        self.names: list[str] = []
        self.loaded: list[str] = []
        self.gpus: int | Exception = 1
        self.memory: Exception | None = None
        self.address = 4096
        self.compiler: Exception | None = None
        self.compiles_s = 0.0
        self.captures: dict[int, list[tuple[Any, ...]]] = {}
        self.graphs: dict[int, list[tuple[Any, ...]]] = {}
        self.executables: dict[int, list[tuple[Any, ...]]] = {}
        self.no_graph: Exception | None = None
        self._handles = itertools.count(100)
        runtime = SimpleNamespace(
            getDeviceCount=self._count,
            getDevice=lambda: 0,
            memGetInfo=lambda: self.bound.add(threading.get_ident()),
            memcpyAsync=self._copy,
            streamSynchronize=lambda stream: self.launched.append(("wait", stream)),
            streamCreateWithPriority=self._stream,
            streamBeginCapture=self._begin,
            streamEndCapture=self._end,
            graphInstantiate=self._instantiate,
            graphDestroy=self.graphs.pop,
            graphExecDestroy=self.executables.pop,
            graphLaunch=self._replay,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            driver=SimpleNamespace(launchKernel=self._launch),
            Device=lambda: SimpleNamespace(
                attributes={"MultiProcessorCount": 132}, compute_capability="90"
            ),
            nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
            compiler=SimpleNamespace(compile_using_nvrtc=self._compile),
            get_current_stream=lambda: SimpleNamespace(ptr=7),
            alloc=self._alloc,
        )

    def RawModule(self, path: str) -> Any:  # noqa: N802
        assert Path(path).read_bytes() == CODE
        self.loaded.append(path)
        return SimpleNamespace(get_function=self._get_function)

    def _compile(self, text: str, options: tuple[str, ...], filename: str) -> tuple[bytes, None]:
        if self.compiler is not None:
            raise self.compiler
        time.sleep(self.compiles_s)
        assert "__global__" in text
        assert options == OPTIONS  # nothing that flushes denormals, or contracts
        self.compiled.append(filename)
        return CODE, None

    def _get_function(self, name: str) -> Any:
        self.names.append(name)
        return SimpleNamespace(kernel=SimpleNamespace(ptr=len(self.names)))

    def _launch(self, function: int, *given: int) -> None:
        assert threading.get_ident() in self.bound
        *sizes, shared, stream, parameters, extra = given
        assert (shared, extra) == (0, 0)
        name = self.names[function - 1]
        noted = name, tuple(sizes[:3]), tuple(sizes[3:]), stream
        if stream in self.captures:
            self.captures[stream].append(noted)
            return
        self.launched.append(noted)
        self.does.get(name, lambda _: None)(parameters)

    def _stream(self, flags: int, priority: int) -> int:
        assert (flags, priority) == (1, -1)  # one that waits for no other, as urgent as the engine
        return next(self._handles)

    def _begin(self, stream: int, mode: int) -> None:
        assert mode == 1  # what other threads call breaks nothing
        assert stream not in self.captures
        self.captures[stream] = []

    def _end(self, stream: int) -> int:
        graph = next(self._handles)
        self.graphs[graph] = self.captures.pop(stream)
        return graph

    def _instantiate(self, graph: int) -> int:
        if self.no_graph is not None:
            raise self.no_graph
        self.executables[executable := next(self._handles)] = self.graphs[graph]
        return executable

    def _replay(self, executable: int, stream: int) -> None:
        self.launched.append(("graph", [name for name, *_ in self.executables[executable]], stream))

    def _copy(self, to: int, source: int, size_bytes: int, kind: int, stream: int) -> None:
        assert (kind, stream) == (2, 7)
        ctypes.memmove(to, source, size_bytes)

    def _count(self) -> int:
        if isinstance(self.gpus, Exception):
            raise self.gpus
        return self.gpus

    def _alloc(self, size_bytes: int) -> Any:
        if self.memory is not None:
            raise self.memory
        return SimpleNamespace(ptr=self.address, size=size_bytes)


def forget() -> None:
    _gpu._cupy.cache_clear()
    _gpu._numbered.cache_clear()
