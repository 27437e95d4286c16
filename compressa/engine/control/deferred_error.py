"""DeferredError: a failure that comes before whoever is to hear of it."""

from __future__ import annotations

from collections.abc import Callable

from compressa.errors import CompressaError


class DeferredError:
    """Passes a failure on to somebody who is there only later; may be called from any thread."""

    def __init__(self) -> None:
        self._error: CompressaError | None = None
        self._target: Callable[[CompressaError], object] | None = None

    def __call__(self, error: CompressaError) -> None:
        """Tell of a failure, now or once `connect` is called."""
        self._error = error
        if self._target is not None:
            self._target(error)

    def connect(self, target: Callable[[CompressaError], object]) -> None:
        """Have `target` called with the failure, if there is one; twice, if it comes just now.

        From any thread; `target` is called on the thread that fails, or in this call.
        """
        self._target = target
        if self._error is not None:
            target(self._error)
