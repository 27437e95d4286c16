"""How kernels are launched by CuPy, with one that only takes notes; and what misses a GPU hears."""

from __future__ import annotations

import ctypes
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from compressa.kernels import Form, KernelUnavailable, quantize_blockwise
from compressa.kernels.cuda import _gpu, check_available
from compressa.kernels.cuda._device import HOME, Table
from compressa.kernels.cuda._parameters import Kernel
from compressa.kernels.device_array import DeviceArray
from emulated_cuda import library
from fake_cupy import NAMES, FakeCuPy, forget

KINDS = (HOME / "_kernel.cuh").read_text().replace("#pragma once\n", "")


def vector(size: int, dtype: Any, pointer: int = 1 << 20) -> Any:
    return DeviceArray(pointer, size, np.dtype(dtype), None)


def quantize(elems: int = 1000) -> None:
    x, codes, scales = vector(elems, np.float32), vector(elems, np.uint8), vector(4, np.float32)
    quantize_blockwise(x, codes, scales[: -(-elems // 256)], form=Form(bits=8, block=256))


def test_launches_with_addresses_and_numbers_on_the_current_stream(cupy: FakeCuPy) -> None:
    seen: list[int] = []

    def look(parameters: int) -> None:
        addresses = (ctypes.c_void_p * 3).from_address(parameters)
        seen.extend(ctypes.c_uint64.from_address(address or 0).value for address in addresses)

    cupy.does["quantize_8_of_256"] = look
    quantize()
    assert cupy.launched == [("quantize_8_of_256", (1, 1, 1), (256, 1, 1), 7)]
    assert seen == [1 << 20, 0, 0]  # an address, the kind of float32, and no residual


def test_every_thread_that_launches_has_the_context_first(cupy: FakeCuPy) -> None:
    quantize()
    failed: list[BaseException] = []

    def launch() -> None:
        try:
            quantize()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert not failed
    assert len(cupy.launched) == 2


TEXT = """
struct Pair { float* out; int count; double half; };

KERNEL(note, 256, (bool yes, const float* in, float factor, Pair pair, short low, i64 n, void* none,
                   double half, u32 last)) {
    if (blockIdx.x || threadIdx.x) return;
    bool well = yes && pair.count == -3 && low == -2 && n == -(i64(1) << 40) && !none;
    well = well && half == 0.1 && pair.half == 0.2 && last == 0xFFFFFFFFu;
    *pair.out = well ? *in * factor : 0.0f;
}
"""
PAIR = np.dtype([("out", np.uint64), ("count", np.int32), ("half", np.float64)], align=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_kernel_finds_its_parameters_as_a_compiler_lays_them_out() -> None:
    run, error = library(KINDS + TEXT).run_kernel, ctypes.create_string_buffer(1)
    given, out = np.array([1.5, 2.5], np.float32), np.zeros(2, np.float32)

    def start(function: int, blocks: int, *sizes_and_stream: int) -> None:
        *_, stream, parameters, _ = sizes_and_stream
        assert (function, stream) == (5, 9)
        addresses = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        assert run(b"note", blocks, addresses, 0, error, 1) == 0

    def arguments(turn: int) -> tuple[Any, ...]:
        there = [DeviceArray(x[turn:].ctypes.data, 1, x.dtype, x) for x in (given, out)]
        pair = Table(PAIR, {}, {"count": -3}).on_gpu.copy()
        pair["out"], pair["half"] = there[1].pointer, 0.2
        numbers = np.int16(-2), np.int64(-(1 << 40)), None, np.float64(0.1), np.uint32(0xFFFFFFFF)
        return np.bool_(True), there[0], np.float32(0.1), pair, *numbers

    kernel = Kernel(SimpleNamespace(ptr=5), start, arguments(0))
    for turn in (0, 1):
        kernel.start(2, arguments(turn), 9)
    assert (out == given * np.float32(0.1)).all()


def test_launches_at_once_have_parameters_of_their_own() -> None:
    inner: list[int] = []
    kernel: Kernel

    def value(parameters: int) -> int:
        address = (ctypes.c_void_p * 1).from_address(parameters)[0]
        return ctypes.c_int32.from_address(address or 0).value

    def start(_: int, blocks: int, *others: int) -> None:
        if blocks == 1:  # while the driver is at it, another thread launches
            kernel.start(2, (np.int32(2),), 0)
        inner.append(value(others[-2]))

    kernel = Kernel(SimpleNamespace(ptr=5), start, (np.int32(1),))
    kernel.start(1, (np.int32(1),), 0)
    assert inner == [2, 1]


def test_an_array_of_the_cpu_is_refused() -> None:
    with pytest.raises(TypeError, match="an array of the CPU"):
        Kernel(None, lambda: None, (np.zeros(2),))


@pytest.mark.parametrize("flushed", [False, True])
def test_a_build_that_makes_zeros_of_small_numbers_is_refused(
    cupy: FakeCuPy, flushed: bool
) -> None:
    answer = np.array([flushed], np.uint64)
    cupy.address = answer.ctypes.data
    for _ in range(2):
        if flushed:
            with pytest.raises(KernelUnavailable, match=r"-ftz=true.*COMPRESSA_CACHE_DIR"):
                check_available()
        else:
            check_available()
    names = [name for name, *_ in cupy.launched]
    assert names == ["clear_answer", "find_flushed", "wait"] * (2 if flushed else 1)


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
    (kept,) = (tmp_path / "cache").glob("*.cubin")
    assert kept.name.startswith("blockwise-")


def test_processes_that_begin_together_compile_a_source_once(cupy: FakeCuPy) -> None:
    cupy.compiles_s = 0.2
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda gpu: gpu.prepare("blockwise"), [_gpu.Gpu() for _ in range(4)]))
    assert cupy.compiled == ["blockwise.cu"]
    assert len(cupy.loaded) == 4


def test_no_launch_but_the_first_of_a_source_loads_anything(cupy: FakeCuPy) -> None:
    quantize()
    assert sorted(cupy.names) == sorted(NAMES)
    loaded, cupy.loaded = cupy.loaded, []
    assert len(loaded) == 1
    cupy.names.append("the end")
    quantize()
    _gpu.current().launch("blockwise", "quantize_8_by_ctas", 1, ())
    assert cupy.names[-1] == "the end"
    assert not cupy.loaded


def test_a_source_is_loaded_whole_when_it_is_prepared(cupy: FakeCuPy) -> None:
    _gpu.current().prepare("blockwise")
    assert sorted(cupy.names) == sorted(NAMES)
    assert not cupy.launched


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


@pytest.mark.parametrize("debug", ["", "launch"])
def test_a_kernel_that_fails_is_named_at_once_if_that_is_asked_for(
    cupy: FakeCuPy, monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv("COMPRESSA_DEBUG", debug)
    quantize()
    waits = [("wait", 7)] if debug else []
    assert cupy.launched[1:] == waits
    cupy.cuda.runtime.streamSynchronize = mock.Mock(side_effect=OSError("illegal address"))
    if debug:
        with pytest.raises(
            RuntimeError, match=r"quantize_8_of_256 of blockwise\.cu failed: illegal address"
        ):
            quantize()
    else:
        quantize()


def test_another_way_to_debug_is_refused(cupy: FakeCuPy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESSA_DEBUG", "lunch")
    with pytest.raises(KernelUnavailable, match="'lunch', and may be 'launch' only"):
        quantize()
