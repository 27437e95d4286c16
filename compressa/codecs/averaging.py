"""Averaging: what the owner of a part of a gradient works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from compressa.codecs.base import Draw


@dataclass(frozen=True)
class Kept:
    """What an owner keeps from step to step.

    Attributes:
        residual: float32; added to the own values, and then the error of the mean.
        undo: As long; receives what is to be kept if the step fails.
        scale: Loss scale that the values carry, and neither of the two does.
        mean_scale: What the mean carries, and its error as it is kept does not.
    """

    residual: torch.Tensor
    undo: torch.Tensor
    scale: float
    mean_scale: float


@dataclass(frozen=True)
class Averaging:
    """One scope, on a CPU, whose mean a rank computes and encodes.

    Attributes:
        values: The own values, float32; receives what the encoded mean decodes to.
        sent: The others' payloads, checked, in the order in which they are added.
        payload: Receives that of the mean.
        draw: Counter of the random bits for the mean.
        weight: Factor on the own values and on each payload's.
        kept: What is kept of it; None for no feedback.
    """

    values: torch.Tensor
    sent: Sequence[torch.Tensor]
    payload: torch.Tensor
    draw: Draw
    weight: float
    kept: Kept | None
