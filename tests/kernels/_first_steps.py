"""A process that trains its first steps and says what numba had to compile: run by a test.

    python tests/kernels/_first_steps.py [--compile | --register] [--half] NAME...

With --compile, what `compressa.kernels.compile` compiles is compiled or loaded before, and what is
compiled or loaded after that is listed. With --register, what a registration compiles is, and what
that was is listed by itself. With --half gradients are float16 and bfloat16 as well.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence

import compressa.kernels.cpu
import torch
from _compilations import Compilations
from compressa.kernels import compile as kernels_compile
from numba.core import event

from compressa.codecs import Codec, Contraction
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.config import Config
from compressa.engine.compilation import compile_kernels
from compressa.engine.units.lockstep import Lockstep
from compressa.parameters import ParameterInfo
from compressa.wrappers import ErrorFeedback, MomentumCorrection

HALF = (torch.bfloat16, torch.float16)
SHAPES = {"weight": (400, 400), "bias": (1000,)}  # selections look at long vectors in another way


def overloads() -> set[str]:
    """Return all compiled functions that are in memory, with their signatures."""
    found = set()
    package = compressa.kernels.cpu
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        for value in vars(importlib.import_module(info.name)).values():
            for signature in getattr(value, "overloads", ()):
                found.add(f"{value.py_func.__module__}.{value.py_func.__name__}{signature}")
    return found


def forms(name: str) -> list[Compressor]:
    """Return a compressor as training uses it: with what the configuration's defaults add."""
    plain = COMPRESSORS[name].compressor()
    if not isinstance(plain, Codec) or not isinstance(plain.bias(1 << 20), Contraction):
        return [plain]
    corrected = ErrorFeedback(codec=plain)
    if name == "dgc":
        return [plain, corrected, MomentumCorrection(compressor=corrected)]
    return [plain, corrected]


def first_steps(name: str, dtypes: Sequence[torch.dtype]) -> None:
    """Train two steps of two and of three ranks, with gradients of every kind."""
    for dtype in dtypes:
        parameters = [ParameterInfo(i, n, s, dtype) for i, (n, s) in enumerate(SHAPES.items())]
        for compressor in forms(name):
            for size in (2, 3):
                ranks = Lockstep(size, parameters, compressor)
                for _ in range(2):
                    ranks.step([_gradients(dtype, rank) for rank in range(size)])


def register(name: str, dtypes: Sequence[torch.dtype]) -> None:
    """Compile or load what registrations with a compressor do, by two and by three ranks."""
    for dtype in dtypes:
        parameters = [ParameterInfo(i, n, s, dtype) for i, (n, s) in enumerate(SHAPES.items())]
        for compressor in forms(name):
            for size in (2, 3):
                compressors = dict.fromkeys(SHAPES, compressor)
                compile_kernels(parameters, compressors, Config(), size)


def _gradients(dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator).to(dtype) for n, s in SHAPES.items()}


def main() -> None:
    """Print what was compiled, and what was not there before."""
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    half = "--half" in sys.argv
    if "--compile" in sys.argv:
        for work in kernels_compile.WORKS:
            kernels_compile.compile_one(work.__name__, half)
    before, listener = overloads(), Compilations()
    event.register("numba:compile", listener)
    missing, registered = {}, {}
    dtypes = (torch.float32, *HALF) if half else (torch.float32,)
    for name in names:
        if "--register" in sys.argv:
            register(name, dtypes)
            registered[name] = sorted(overloads() - before)
            before = overloads()
        first_steps(name, dtypes)
        missing[name] = sorted(overloads() - before)
        before = overloads()
    found = {"compiled": listener.names, "missing": missing, "registered": registered}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
