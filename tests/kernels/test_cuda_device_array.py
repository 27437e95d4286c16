from __future__ import annotations

import numpy as np
import pytest
from compressa.kernels import Form, device_of, quantize_blockwise
from compressa.kernels.cuda._device import device
from compressa.kernels.device_array import DeviceArray
from emulated_cuda import on_device, on_emulated_cuda

pytestmark = on_emulated_cuda


def test_parts_and_views_share_the_memory() -> None:
    memory = np.arange(24, dtype=np.uint8)
    whole = on_device(memory)
    part = whole[4:20].view(np.float32)
    assert (part.size, part.shape, part.ndim, part.dtype) == (4, (4,), 1, np.float32)
    assert part.pointer == memory.ctypes.data + 4
    assert part[1:].pointer == part.pointer + 4
    assert part[9:].size == whole[5:2].size == 0
    assert part.flags.aligned
    assert not whole[3:7].view(np.float32).flags.aligned
    assert part.owner is memory


def test_refuses_steps_and_parts_of_elements() -> None:
    whole = on_device(np.zeros(10, np.uint8))
    with pytest.raises(ValueError, match="no steps"):
        whole[::2]
    with pytest.raises(ValueError, match="2 bytes would be left"):
        whole.view(np.float32)


def test_a_matrix_has_its_elements_row_after_row() -> None:
    memory = np.arange(24, dtype=np.float32).reshape(4, 6)
    for matrix in (on_device(memory), on_device(memory.reshape(-1)).reshape(4, 6)):
        assert (matrix.shape, matrix.ndim, matrix.size) == ((4, 6), 2, 24)
        assert matrix.pointer == memory.ctypes.data
        assert matrix.flags.c_contiguous
        assert matrix.__cuda_array_interface__["shape"] == (4, 6)
        assert repr(matrix).endswith("(4, 6), float32)")
        vector = matrix.reshape(24)
        assert (vector.shape, vector.ndim) == ((24,), 1)
        assert vector[3:].pointer == memory.ctypes.data + 12
    assert on_device(np.zeros((0, 5), np.float32)).shape == (0, 5)


@pytest.mark.parametrize("shape", [(5, 5), (-4, -6), (4, -1), ()])
def test_refuses_shapes_for_another_number_of_elements(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="it has 24 elements"):
        on_device(np.zeros(24, np.float32)).reshape(*shape)


def test_refuses_parts_and_views_of_a_matrix() -> None:
    matrix = on_device(np.zeros((4, 6), np.float32))
    with pytest.raises(ValueError, match="no vector and can not be cut: reshape it first"):
        matrix[1:]
    with pytest.raises(ValueError, match="no vector and can not be viewed"):
        matrix.view(np.uint8)


def test_lies_on_the_gpu_for_every_kernel() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    form = Form(bits=8, block=256)
    made = []
    for moved in (on_device, lambda array: array):
        codes, scales = np.zeros(1000, np.uint8), np.zeros(4, np.float32)
        quantize_blockwise(moved(x), moved(codes), moved(scales), form=form)
        made.append((codes, scales))
    assert device_of(on_device(x)) == "cuda"
    assert (made[0][0] == made[1][0]).all()
    assert (made[0][1] == made[1][1]).all()


def test_is_checked_like_other_arrays() -> None:
    form, x = Form(bits=8, block=256), on_device(np.zeros(10, np.float32))
    scales = on_device(np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"codes must have shape \(10,\), not \(9,\)"):
        quantize_blockwise(x, on_device(np.zeros(9, np.uint8)), scales, form=form)
    with pytest.raises(TypeError, match="codes must be uint8, not float32"):
        quantize_blockwise(x, x, scales, form=form)
    odd = on_device(np.zeros(41, np.uint8))[1:].view(np.float32)
    with pytest.raises(ValueError, match="x must be aligned to 4 bytes"):
        quantize_blockwise(odd, on_device(np.zeros(10, np.uint8)), scales, form=form)
    with pytest.raises(ValueError, match="must lie on one device"):
        quantize_blockwise(x, np.zeros(10, np.uint8), scales, form=form)


def test_memory_of_the_device_is_poisoned_here() -> None:
    memory = device().empty(5, np.uint8)
    assert (memory.owner == 0xA7).all()
    assert device().read(memory[1:]) == 0xA7


def test_is_an_array_for_libraries_of_cuda() -> None:
    facts = DeviceArray(4096, 7, np.dtype(np.uint16), None).__cuda_array_interface__
    assert facts == {"shape": (7,), "typestr": "<u2", "data": (4096, False), "version": 3}
