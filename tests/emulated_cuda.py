"""A device for the CUDA kernels where there is no GPU: their source, compiled by g++ for the CPU.

`cuda_on_cpu.h` gives C++ the parts of CUDA that the kernels use. Arrays are NumPy's.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compressa.kernels.cuda import _device
from compressa.kernels.cuda._device import Argument, Launch, Struct
from compressa.kernels.device_array import DeviceArray
from kernel_cases import poisoned

on_emulated_cuda = pytest.mark.usefixtures("emulated_cuda")
"""The mark of a test module whose kernels run here; see `conftest.py`."""

SHARED = "COMPRESSA_TEST_LIBRARIES"
"""Names the folder that all processes of a test run share, and later runs find again."""

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
# Libraries of one process share nothing: two sources may have kernels of one name. What hears of
# odd addresses is in the header, so the sanitizer's own library, which may be missing, is left out.
# Ubuntu's g++ has every jump checked, and takes those between fibers for damage to the stack.
FLAGS = (
    "-std=c++17 -O1 -Wall -Wextra -Werror -ffp-contract=off -fno-strict-aliasing -shared -fPIC "
    "-fvisibility=hidden -fno-gnu-unique -fsanitize=alignment -nodefaultlibs "
    "-U_FORTIFY_SOURCE"
)
LIBRARIES = "-lstdc++ -lm -lgcc_s -lc"
_ERROR_BYTES = 1000


source_text = cache(_device.source_text)  # a launch would read its files anew


@cache
def _own_folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="compressa-cuda-")


def _folder() -> Path:
    """Where libraries are: of all processes of test runs, or of this one."""
    return Path(os.environ.get(SHARED) or _own_folder().name)


@cache
def _built(text: str) -> tuple[Path, str]:
    """Compile the text of a ``.cu`` file, each text once; return what g++ says."""
    name = sha256(f"{HEADER.read_text()}{FLAGS}{LIBRARIES}{text}".encode()).hexdigest()[:16]
    built = _folder() / f"{name}.so"
    with open(_folder() / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it
        if built.exists():
            return built, ""
        source, new = (built.with_suffix(end) for end in (".cu", ".new"))
        source.write_text(text)
        command = ["g++", *FLAGS.split(), "-include", str(HEADER), "-x", "c++", str(source)]
        command += ["-o", str(new), *LIBRARIES.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            new.rename(built)
        return built, done.stderr


@cache
def library(text: str) -> ctypes.CDLL:
    """Return the compiled text of a ``.cu`` file."""
    built, said = _built(text)
    assert built.exists(), said
    loaded = ctypes.CDLL(str(built))
    loaded.run_kernel.argtypes = [
        ctypes.c_char_p,
        ctypes.c_uint,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_uint,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    return loaded


class Emulated:
    """Runs kernels one thread after the other; every launch in another order.

    Attributes:
        processors: Few, so that kernels take more than one iteration of their loops.
    """

    processors = 1

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def launch(self, source: str, name: str, blocks: int, arguments: tuple[Argument, ...]) -> None:
        """See `compressa.kernels.cuda._device.Device.launch`."""
        run_text(source_text(source), name, blocks, arguments, self._seed)
        self._seed += 1

    def empty(self, elems: int, dtype: npt.DTypeLike) -> Any:
        """See `compressa.kernels.cuda._device.Device.empty`; poisoned."""
        return on_device(poisoned(elems, dtype))

    def read(self, array: Any) -> int:
        """See `compressa.kernels.cuda._device.Device.read`."""
        return first_of(array)

    def graph(self, launches: Sequence[Launch]) -> Callable[[], object] | None:
        """See `compressa.kernels.cuda._device.Device.graph`; there are none without streams."""
        return None


def run_text(
    text: str, name: str, blocks: int, arguments: tuple[Argument, ...], seed: int = 0
) -> None:
    """Run a kernel of a text.

    Raises:
        TypeError: There is no such kernel, or an argument has not the size of its parameter.
        RuntimeError: Threads wait for each other for ever, a lane reads what nobody gave, or an
            address is not aligned.
    """
    loaded, encoded = library(text), name.encode()
    sizes = (ctypes.c_int * 64)()
    count = loaded.kernel_parameters(encoded, sizes, len(sizes))
    if count < 0:
        raise TypeError(f"there is no kernel {name}")
    held = [bytes_of(argument) for argument in arguments]
    if [len(one) for one in held] != sizes[:count]:
        given = [len(one) for one in held]
        raise TypeError(f"{name} takes parameters of {sizes[:count]} bytes, not of {given}")
    buffers = [ctypes.create_string_buffer(one, len(one)) for one in held]
    addresses = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in buffers))
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if loaded.run_kernel(encoded, blocks, addresses, seed, error, _ERROR_BYTES):
        raise RuntimeError(f"{name}: {_with_code(error.value.decode(), text)}")


def _with_code(said: str, text: str) -> str:
    """Put the line of a text that is spoken of behind what was said: its files are joined there."""
    found = re.match(r".+\.cu:(\d+): ", said)
    return f"{said}: {text.splitlines()[int(found[1]) - 1].strip()}" if found else said


def bytes_of(argument: Any) -> bytes:
    """What a parameter gets: an array's address, a scalar's bytes, a struct, or a null pointer."""
    if isinstance(argument, bytes):
        return argument
    if argument is None:
        return bytes(8)
    if isinstance(argument, DeviceArray | np.ndarray):
        return np.uint64(_address(argument)).tobytes()
    if isinstance(argument, Struct):
        return argument.filled(_address).tobytes()
    assert isinstance(argument, np.generic), f"{argument!r} has no size of its own"
    return argument.tobytes()


def _address(array: Any) -> int:
    return int(array.pointer if isinstance(array, DeviceArray) else array.ctypes.data)


def first_of(array: Any) -> int:
    """Return the first number of an array that the CPU holds."""
    size_bytes = array.dtype.itemsize
    return int(np.frombuffer(ctypes.string_at(array.pointer, size_bytes), array.dtype)[0])


def on_device(array: npt.NDArray[Any]) -> Any:
    """Return an array's memory as if a GPU had it."""
    vector = DeviceArray(array.ctypes.data, array.size, array.dtype, array)
    return vector if array.ndim == 1 else vector.reshape(*array.shape)
