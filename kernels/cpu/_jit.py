"""The one numba setting that all CPU kernels are compiled with.

``nogil``: the engine's own threads run kernels side by side. ``cache``: compiled code is kept on
disk, so that only the first process on a machine compiles. ``error_model="numpy"``: a division by
zero gives inf or NaN as in the reference, and loops keep no branch for it. Neither ``fastmath``
nor ``parallel``: the first would change bits (also by contracting a*b + c), and the default layer
of the second aborts the process when two threads call it.

Numba's cache notices a change in the file of the compiled function only. After an edit of a helper
that other files call (``_feedback.py``, ``_tree.py``), delete ``kernels/cpu/__pycache__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba

_P = ParamSpec("_P")
_R = TypeVar("_R")


def jit(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile ``function`` on its first call with each new combination of argument types."""
    compiled = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return cast(Callable[_P, _R], compiled)


def lean(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """As `jit`, without numba's memory management: for what works on blocks.

    Such code allocates nothing (it does not compile if it tries) and counts no references, which
    with small slices takes longer than the work on them. It may return views of arrays only
    (`_view.py`), since nobody would count what it returns.
    """
    return _lean(function, inline=False)


def inlined(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """As `lean`, for what is called once per block: its calls pass arrays, which costs as much."""
    return _lean(function, inline=True)


def _lean(function: Callable[_P, _R], inline: bool) -> Callable[_P, _R]:
    options: Any = {"nogil": True, "cache": True, "error_model": "numpy", "_nrt": False}
    return cast(Callable[_P, _R], numba.njit(**options, forceinline=inline)(function))
