"""Overlap: communication goes on while the next forward pass runs."""

from compressa.overlap.model import OverlappedDataParallel

__all__ = ["OverlappedDataParallel"]
