"""How kernels are launched by CuPy, with one that only takes notes; and what misses a GPU hears."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compressa.kernels import Form, KernelUnavailable, quantize_blockwise
from compressa.kernels.cuda import _gpu
from compressa.kernels.cuda._device import OPTIONS
from compressa.kernels.device_array import DeviceArray

CODE = b"machine code"


class FakeCuPy(SimpleNamespace):
    """As much of CuPy as launches use.

    Attributes:
        launched: Name, grid, block, arguments and stream of every launch.
        compiled: Name of every source that was compiled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[tuple[Any, ...]] = []
        self.compiled: list[str] = []
        self.gpus: int | Exception = 1
        self.memory: Exception | None = None
        self.compiler: Exception | None = None
        runtime = SimpleNamespace(
            getDeviceCount=self._count,
            getDevice=lambda: 0,
            memcpyAsync=self._copy,
            streamSynchronize=lambda stream: self.launched.append(("wait", stream)),
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
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
        return SimpleNamespace(get_function=self._get_function)

    def _compile(self, text: str, options: tuple[str, ...], filename: str) -> tuple[bytes, None]:
        if self.compiler is not None:
            raise self.compiler
        assert "__global__" in text
        assert options == OPTIONS  # nothing that flushes denormals, or contracts
        self.compiled.append(filename)
        return CODE, None

    def _get_function(self, name: str) -> Any:
        def kernel(*given: Any, stream: Any) -> None:
            self.launched.append((name, *given, stream.ptr))

        return SimpleNamespace(kernel=kernel)

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
        return SimpleNamespace(ptr=4096, size=size_bytes)


def forget() -> None:
    _gpu._cupy.cache_clear()
    _gpu._numbered.cache_clear()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCuPy]:
    fake = FakeCuPy()
    monkeypatch.setenv("COMPRESSA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(_gpu, "_hosts", [])
    forget()
    yield fake
    forget()


def vector(size: int, dtype: Any, pointer: int = 1 << 20) -> Any:
    return DeviceArray(pointer, size, np.dtype(dtype), None)


def quantize(elems: int = 1000) -> None:
    x, codes, scales = vector(elems, np.float32), vector(elems, np.uint8), vector(4, np.float32)
    quantize_blockwise(x, codes, scales[: -(-elems // 256)], form=Form(bits=8, block=256))


def test_launches_with_addresses_and_typed_numbers_on_the_current_stream(cupy: FakeCuPy) -> None:
    quantize()
    ((name, grid, block, arguments, stream),) = cupy.launched
    assert (name, grid, block, stream) == ("quantize_8_by_warps", (1,), (256,), 7)
    assert arguments[0] == 1 << 20
    assert arguments[2] == 0  # there is no residual
    assert {type(argument) for argument in arguments} <= {
        np.uint64,
        np.int64,
        np.int32,
        np.uint32,
        np.float32,
        np.float64,
    }


def test_nothing_is_launched_for_nothing(cupy: FakeCuPy) -> None:
    quantize(0)
    assert not cupy.launched


def test_another_library_may_serve_streams_and_memory(cupy: FakeCuPy) -> None:
    class Host:
        def stream(self) -> int:
            return 99

        def empty(self, size_bytes: int) -> DeviceArray:
            return vector(size_bytes, np.uint8, pointer=512)

    _gpu.serve(Host())
    quantize()
    assert cupy.launched[0][-1] == 99
    memory = _gpu.current().empty(3, np.float32)
    assert (memory.pointer, memory.shape, memory.dtype) == (512, (3,), np.float32)


def test_memory_of_a_kernels_own(cupy: FakeCuPy) -> None:
    memory = _gpu.current().empty(5, np.uint32)
    assert (memory.pointer, memory.size) == (4096, 5)
    assert _gpu.current().empty(0, np.uint32).size == 0


def test_a_number_is_waited_for_on_the_current_stream(cupy: FakeCuPy) -> None:
    numbers = np.array([5, 9], np.uint64)
    there = DeviceArray(numbers.ctypes.data, 2, numbers.dtype, numbers)
    assert _gpu.current().read(there[1:]) == 9
    assert cupy.launched == [("wait", 7)]


def test_what_is_there_is_looked_for_once(cupy: FakeCuPy) -> None:
    quantize()
    cupy.gpus = RuntimeError("asked again")
    quantize()
    assert len(cupy.launched) == 2


def test_without_cupy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(KernelUnavailable, match=r"device 'cuda' .*pip install compressa\[cuda12\]"):
        quantize()


@pytest.mark.parametrize("gpus", [0, RuntimeError("cudaErrorInsufficientDriver")])
def test_without_a_gpu_it_says_so(cupy: FakeCuPy, gpus: int | Exception) -> None:
    cupy.gpus = gpus
    with pytest.raises(KernelUnavailable, match=r"CuPy sees no GPU.*nvidia-smi"):
        quantize()


def test_what_can_not_be_compiled_names_the_compiler(cupy: FakeCuPy) -> None:
    cupy.compiler = RuntimeError("libnvrtc.so.12: cannot open shared object file")
    with pytest.raises(KernelUnavailable, match=r"blockwise\.cu .*libnvrtc.*pip install"):
        quantize()


def test_what_was_compiled_is_found_by_the_next_process(cupy: FakeCuPy, tmp_path: Path) -> None:
    quantize()
    forget()  # as in a new process
    quantize()
    assert cupy.compiled == ["blockwise.cu"]
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.suffix == ".cubin"


def test_another_kind_of_gpu_has_code_of_its_own(cupy: FakeCuPy) -> None:
    quantize()
    forget()
    cupy.cuda.Device = lambda: SimpleNamespace(
        attributes={"MultiProcessorCount": 108}, compute_capability="80"
    )
    quantize()
    assert cupy.compiled == ["blockwise.cu"] * 2


def test_a_cache_that_can_not_be_written_names_the_setting(
    cupy: FakeCuPy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPRESSA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(KernelUnavailable, match="set COMPRESSA_CACHE_DIR to a folder"):
        quantize()


def test_out_of_memory_says_how_much_and_what_helps(cupy: FakeCuPy) -> None:
    cupy.memory = RuntimeError("Out of memory allocating 4,096 bytes")
    with pytest.raises(MemoryError, match=r"no 4,000 bytes left .*smaller"):
        _gpu.current().empty(1000, np.float32)
    cupy.memory = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        _gpu.current().empty(1000, np.float32)
