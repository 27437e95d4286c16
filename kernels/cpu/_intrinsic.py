"""numba's `intrinsic`, typed as what compiled code calls: without the typing context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import extending


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that compiled code can call of one that writes LLVM's instructions."""
    return cast(Callable[..., Any], extending.intrinsic(function))
