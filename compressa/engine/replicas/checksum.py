"""Checksum of a tensor's bytes: whether two ranks hold the same; see `compressa.kernels`."""

from __future__ import annotations

import torch

from compressa.arrays import as_array
from compressa.kernels.checksums import checksum as checksum_of_array


def checksum(data: torch.Tensor) -> int:
    """Return the 64-bit checksum of uint8 memory; waits for the device.

    Args:
        data: 1-D and contiguous, on a CPU or a GPU.

    Example:
        >>> same = torch.arange(20, dtype=torch.uint8)
        >>> checksum(same) == checksum(same.clone()) != checksum(same.flip(0))
        True
    """
    return checksum_of_array(as_array(data))
