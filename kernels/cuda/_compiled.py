"""Machine code of the sources, compiled once for a kind of GPU and kept on disk.

One process of a host compiles a source; the others wait for its file.

CuPy's own way, ``RawModule(code=...)``, puts ``-ftz=true`` behind all other options: numbers too
small to be normal would become zeros, and bits differ from those of every other device. So NVRTC is
called by CuPy's compiler itself, which adds the GPU's architecture and nothing that changes a bit.

The folder is ``COMPRESSA_CACHE_DIR``, or else ``compressa`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from .._backends import KernelUnavailable
from ..compiled import one_at_a_time
from ._device import OPTIONS, source_text


def machine_code(cupy: Any, source: str) -> Path:
    """Return the file of a source's machine code for the current GPU; compile it if need be.

    Args:
        cupy: The library.
        source: Name of the ``.cu`` file, without the ending.

    Raises:
        KernelUnavailable: It can not be compiled or kept; the message names the fix.
    """
    text = source_text(source)
    try:
        facts = OPTIONS, cupy.cuda.Device().compute_capability, cupy.cuda.nvrtc.getVersion(), text
        name = f"{source}-{sha256(repr(facts).encode()).hexdigest()[:32]}.cubin"
        path = _folder() / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with one_at_a_time(path.with_suffix(".lock")):
                if not path.exists():
                    _keep(path, _compiled(cupy, source, text))
        return path
    except OSError as error:
        raise KernelUnavailable(
            f"compiled kernels can not be kept ({error}); set COMPRESSA_CACHE_DIR to a folder that "
            "can be written"
        ) from error


def _compiled(cupy: Any, source: str, text: str) -> bytes:
    try:
        code, _ = cupy.cuda.compiler.compile_using_nvrtc(text, OPTIONS, filename=f"{source}.cu")
        return bytes(code)
    except Exception as error:
        raise KernelUnavailable(
            f"{source}.cu can not be compiled on this machine ({error}); CuPy needs NVRTC and "
            "a GPU of compute capability 8.0 or more: pip install nvidia-cuda-nvrtc-cu12 for "
            "CUDA 12, nvidia-cuda-nvrtc for CUDA 13"
        ) from error


def _folder() -> Path:
    named = os.environ.get("COMPRESSA_CACHE_DIR")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else caches / "compressa"


def _keep(path: Path, code: bytes) -> None:
    """Write a file that other processes see whole, or not at all."""
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(code)
    os.replace(file.name, path)
