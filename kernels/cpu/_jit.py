"""The one numba setting that all CPU kernels are compiled with, and numba's `intrinsic`, typed.

``nogil``: the engine's own threads run kernels side by side. Compiled code is kept on disk
(`_cache.py`), so that only the first process on a machine compiles. ``error_model="numpy"``: a
division by zero gives inf or NaN as in the reference, and loops keep no branch for it. Neither
``fastmath`` nor ``parallel``: the first would change bits (also by contracting a*b + c), and the
default layer of the second aborts the process when two threads call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba import extending, types
from numba.core.ccallback import CFunc

from ._cache import KernelCache

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ALL = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_NESTED = {"no_cpython_wrapper": True}
_LEAN = {"_nrt": False}
_FOR_C: list[CFunc] = []


def jit(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile ``function`` on its first call with each new combination of argument types."""
    return _compiled(function, _ALL)


def nested(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """As `jit`, for what only compiled code calls: a call from Python crashes.

    What takes arguments from Python and gives results back takes a third of the compilation.
    """
    return _compiled(function, _ALL | _NESTED)


def lean(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """As `jit`, without numba's memory management: for what works on blocks.

    Such code allocates nothing (it does not compile if it tries) and counts no references, which
    with small slices takes longer than the work on them. It may return views of arrays only
    (`_view.py`), since nobody would count what it returns.
    """
    return _compiled(function, _ALL | _LEAN)


def lean_nested(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """As `lean` and `nested`."""
    return _compiled(function, _ALL | _LEAN | _NESTED)


def inlined(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """As `lean_nested`, for what is called once per block: calls that pass arrays cost as much."""
    return _compiled(function, _ALL | _LEAN | _NESTED | {"forceinline": True})


def c_function(function: Callable[[int], None]) -> int:
    """Compile a function of an address, as `lean`; return where C finds it. It never goes away."""
    options = {"nopython": True, "error_model": "numpy", **_LEAN}
    compiled: Any = CFunc(function, ((types.int64,), types.void), locals={}, options=options)
    compiled._cache = KernelCache(function)
    compiled.compile()
    _FOR_C.append(compiled)
    return cast(int, compiled.address)


def _compiled(function: Callable[_P, _R], options: dict[str, Any]) -> Callable[_P, _R]:
    compiled = numba.njit(**options)(function)
    compiled._cache = KernelCache(function)  # as `cache=True` would, which knows one folder only
    return cast(Callable[_P, _R], compiled)


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that compiled code can call of one that writes LLVM's instructions."""
    return cast(Callable[..., Any], extending.intrinsic(function))
