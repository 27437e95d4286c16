"""What numba compiles, as it happens."""

from __future__ import annotations

from typing import Any

from numba.core import event


class Compilations(event.Listener):
    """Names the functions that numba compiles."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, found: Any) -> None:
        """Note a function and its signature."""
        function = found.data["dispatcher"].py_func
        self.names.append(f"{function.__module__}.{function.__name__}{found.data['args']}")

    def on_end(self, found: Any) -> None:
        """Nothing."""
