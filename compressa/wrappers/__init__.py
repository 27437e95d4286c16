"""Wrappers: compressors around compressors, with the interface of what they wrap."""

from compressa.aggregators.feedback import FeedbackRule
from compressa.wrappers.dense_below import DenseBelow
from compressa.wrappers.density_schedule import DensitySchedule
from compressa.wrappers.ef21 import EF21
from compressa.wrappers.error_feedback import ErrorFeedback
from compressa.wrappers.flushed import Flushed
from compressa.wrappers.momentum_correction import MomentumCorrection
from compressa.wrappers.warmup import Warmup

__all__ = [
    "EF21",
    "DenseBelow",
    "DensitySchedule",
    "ErrorFeedback",
    "FeedbackRule",
    "Flushed",
    "MomentumCorrection",
    "Warmup",
]
