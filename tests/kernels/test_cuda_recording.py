"""Recordings by CuPy: graphs of launches, with one that only takes notes."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compressa.kernels import Form, cuda, quantize_blockwise
from compressa.kernels.cuda import _device, _gpu
from compressa.kernels.device_array import DeviceArray
from fake_cupy import FakeCuPy

KERNEL = "quantize_8_of_256"


def vector(size: int, dtype: Any) -> Any:
    return DeviceArray(1 << 20, size, np.dtype(dtype), None)


def quantize() -> None:
    x, codes, scales = vector(1000, np.float32), vector(1000, np.uint8), vector(4, np.float32)
    quantize_blockwise(x, codes, scales, form=Form(bits=8, block=256))


def recording(launches: int = 2) -> cuda.Recording:
    return cuda.Recording([[quantize]] * launches)


def start(it: cuda.Recording, times: int) -> None:
    with cuda.graphs():
        for _ in range(times):
            it.start()


def names(cupy: FakeCuPy) -> list[Any]:
    return [launched[0] for launched in cupy.launched]


def test_nothing_is_launched_while_launches_are_noted(cupy: FakeCuPy) -> None:
    it = recording()
    assert not cupy.launched
    it.start()
    assert names(cupy) == [KERNEL] * 2


def test_the_third_start_captures_and_later_ones_are_one_call(cupy: FakeCuPy) -> None:
    it = recording()
    start(it, 4)
    assert cupy.launched[:4] == [(KERNEL, (1, 1, 1), (256, 1, 1), 7)] * 4
    assert cupy.launched[4:] == [("graph", [KERNEL] * 2, 7)] * 2
    assert not cupy.graphs  # what was captured is let go; what is started stays
    assert len(cupy.executables) == 1
    it.start()
    assert names(cupy)[-2:] == [KERNEL] * 2
    del it
    gc.collect()
    assert not cupy.executables


def test_one_launch_is_no_graph(cupy: FakeCuPy) -> None:
    start(recording(1), 5)
    assert names(cupy) == [KERNEL] * 5


def test_threads_capture_on_streams_of_their_own(cupy: FakeCuPy) -> None:
    meeting, begin = threading.Barrier(2, timeout=10.0), cupy.cuda.runtime.streamBeginCapture

    def together(stream: int, mode: int) -> None:
        begin(stream, mode)
        meeting.wait()

    cupy.cuda.runtime.streamBeginCapture = together
    threads = [threading.Thread(target=start, args=(recording(), 3)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(cupy).count("graph") == 2


@pytest.mark.parametrize("fails", ["launch", "instantiate"])
def test_what_can_not_be_captured_goes_on_by_launches_and_says_so_once(
    cupy: FakeCuPy, fails: str
) -> None:
    cupy.no_graph = RuntimeError("operation not supported")
    launch: Callable[..., None] = cupy.cuda.driver.launchKernel

    def refusing(function: int, *given: int) -> None:
        if fails == "launch" and cupy.captures:
            raise RuntimeError("operation not supported")
        launch(function, *given)

    cupy.cuda.driver.launchKernel = refusing
    first, second = recording(), recording()
    with pytest.warns(RuntimeWarning, match=r"\(operation not supported\).*engine.cuda_graphs"):
        start(first, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(first, 2)
        start(second, 4)
    assert names(cupy) == [KERNEL] * 2 * 9
    assert not cupy.captures
    assert not cupy.graphs


def test_where_each_launch_is_waited_for_there_are_no_graphs(
    cupy: FakeCuPy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESSA_DEBUG", "launch")
    start(recording(), 4)
    assert names(cupy) == [KERNEL, "wait"] * 2 * 4


def test_what_waits_for_the_gpu_can_not_be_recorded(cupy: FakeCuPy) -> None:
    with pytest.raises(RuntimeError, match="can not be recorded"):
        cuda.Recording([[lambda: _device.device().read(vector(1, np.uint64))]])


@pytest.mark.parametrize("source", ["topk", "topk_many"])
def test_a_source_is_loaded_with_its_other_form(cupy: FakeCuPy, source: str) -> None:
    _gpu.current().prepare(source)
    assert sorted(cupy.compiled) == ["topk.cu", "topk_many.cu"]
