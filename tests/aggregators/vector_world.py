"""Ranks that combine one vector: what most tests of aggregators need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from compressa.compressor import Compressor
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld
from compressa.testing.inputs import generator
from compressa.transports.frames import FRAME_HEADER_BYTES


class VectorWorld(LoopbackWorld):
    """Ranks with one parameter, "w"."""

    def __init__(self, size: int, elems: int, compressor: Compressor, **options: Any) -> None:
        super().__init__(size, [ParameterInfo(0, "w", (elems,))], compressor, **options)

    def means(self, given: Sequence[torch.Tensor], **options: Any) -> list[torch.Tensor]:
        """Combine a step's vectors."""
        return [mean["w"] for mean in self.step([{"w": own} for own in given], **options)]

    def residual(self, rank: int = 0) -> torch.Tensor:
        return self.states[rank].vectors["residual/w"]

    def payload_bytes(self, rank: int = 0) -> int:
        """What a rank has sent, without the headers of frames."""
        traffic = self.loopback.transports[rank].traffic
        return traffic.sent_bytes - FRAME_HEADER_BYTES * traffic.messages


def gaussians(size: int, seed: int = 0, *, elems: int) -> list[torch.Tensor]:
    """Return a vector for each rank; other ones for another seed."""
    return [torch.randn(elems, generator=generator(100 * seed + rank)) for rank in range(size)]
