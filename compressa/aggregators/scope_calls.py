"""ScopeCalls: what is called for each scope; on a GPU what is alike goes by one launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from compressa.arrays import as_array
from compressa.codecs._multi_tensor import unowned
from compressa.kernels import cuda

Call = Callable[[], object]

_MOST = 8  # that are kept: values lie where those of the last steps did


class ScopeCalls:
    """Calls for scopes, one after the other; on a GPU their launches are noted, and kept.

    Args:
        device: Where the scopes are.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cpu = device.type == "cpu"
        self._recordings: dict[Hashable, cuda.Recording] = {}

    def array(self, x: torch.Tensor) -> npt.NDArray[Any]:
        """Return a tensor as kernels take it; of a GPU in what does not keep its memory."""
        return as_array(x) if self._on_cpu else unowned(x)

    def run(self, key: Hashable, calls: Callable[[], Sequence[Call]]) -> None:
        """Make calls that launch kernels, and do nothing else on a GPU.

        Args:
            key: The same as before only if they are: with all numbers and addresses in them; None
                if they never are.
            calls: Makes them.
        """
        if self._on_cpu:
            for call in calls():
                call()
            return
        if key is None:
            cuda.Recording([calls()]).start()
            return
        recording = self._recordings.get(key)
        if recording is None:
            while len(self._recordings) >= _MOST:
                del self._recordings[next(iter(self._recordings))]
            recording = self._recordings[key] = cuda.Recording([calls()])
        recording.start()
