"""A 5-hidden-layer perceptron of 4.28 million parameters: a step that is all communication.

64-1024-1024-1024-1024-1024-10 on the digits, batch 32. With one thread the step computes for tens
of milliseconds and, in float32, sends 17 MB: the shape for which latency and bandwidth are
everything. It is meant for timing cells; it trains too.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from lab.tasks.digits import Digits

WIDTHS = (64, 1024, 1024, 1024, 1024, 1024, 10)


class Perceptron(nn.Module):
    """Linear layers of :data:`WIDTHS` with ReLU between them."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for wide_in, wide_out in pairwise(WIDTHS):
            layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, 10) from images of shape (batch, 64)."""
        logits: Tensor = self.layers(images)
        return logits


def mlp_task() -> Digits:
    """The digits with the perceptron, 32 images per rank and step."""
    return Digits(Perceptron, name="mlp", batch=32, learning_rate=0.1)
