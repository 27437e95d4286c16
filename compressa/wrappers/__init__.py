"""Wrappers: compressors around compressors, with the interface of what they wrap."""

from compressa.wrappers.dense_below import DenseBelow
from compressa.wrappers.error_feedback import ErrorFeedback
from compressa.wrappers.warmup import Warmup

__all__ = ["DenseBelow", "ErrorFeedback", "Warmup"]
