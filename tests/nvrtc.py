"""NVRTC by ctypes: the compiler that makes the kernels on a user's machine. It needs no GPU.

Its wheel is `nvidia-cuda-nvrtc`. What it makes of a text for a GPU by the same options is the same,
so test runs keep it, as they keep what is compiled for the CPU.
"""

from __future__ import annotations

import ctypes
import json
import os
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from emulated_cuda import SHARED


class Compiled(NamedTuple):
    """What has become of a source.

    Attributes:
        code: For the GPU.
        ptx: What that was assembled from.
        said: What the compiler and the assembler said.
    """

    code: bytes
    ptx: str
    said: str


@cache
def library() -> ctypes.CDLL | None:
    """Return the library; None where the wheel is not installed."""
    spec = find_spec("nvidia")
    for home in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted(Path(home).rglob("libnvrtc.so*")):
            return ctypes.CDLL(str(found))
    return None


@cache
def compiled(text: str, architecture: str, options: tuple[str, ...]) -> Compiled:
    """Compile a source for an architecture such as "sm_90", once.

    For a virtual one, such as "compute_90", there is no machine code, and PTX in less time.

    Raises:
        SyntaxError: It does not compile; the message says why.
    """
    if SHARED not in os.environ:
        return _compiled(text, architecture, options)
    asked = repr((_which(), text, architecture, options))
    kept = Path(os.environ[SHARED]) / f"{sha256(asked.encode()).hexdigest()[:16]}.nvrtc"
    if not kept.exists():
        new = kept.with_suffix(f".{os.getpid()}")
        made = _compiled(text, architecture, options)
        new.write_text(json.dumps([made.code.hex(), made.ptx, made.said]), encoding="utf-8")
        new.rename(kept)  # whole, whoever else is at it
    code, ptx, said = json.loads(kept.read_text(encoding="utf-8"))
    return Compiled(bytes.fromhex(code), ptx, said)


def _which() -> tuple[str, int, int]:
    """Tell one library from another, and from the same of another version."""
    nvrtc = library()
    assert nvrtc is not None
    found = os.stat(nvrtc._name)
    return nvrtc._name, found.st_size, found.st_mtime_ns


def _compiled(text: str, architecture: str, options: tuple[str, ...]) -> Compiled:
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    given = [option.encode() for option in (*options, f"--gpu-architecture={architecture}")]
    _check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    )
    try:
        failed = nvrtc.nvrtcCompileProgram(
            program, len(given), (ctypes.c_char_p * len(given))(*given)
        )
        said = _read(program, "ProgramLog").decode(errors="replace").rstrip("\0")
        if failed:
            raise SyntaxError(said)
        ptx = _read(program, "PTX").decode(errors="replace")
        virtual = architecture.startswith("compute_")
        return Compiled(b"" if virtual else _read(program, "CUBIN"), ptx, said)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    nvrtc, size = library(), ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, room))
    return room.raw


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"NVRTC failed with code {code}")
