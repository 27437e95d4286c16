"""Differences of activations from the last ones of the same sample: AQ-SGD (Wang et al., 2022).

"Fine-tuning Language Models over Slow Networks using Activation Quantization with Guarantees": both
ends of an edge keep an estimate m(s) of the activations a(s) of each sample s. A sample that is new
is sent as it is: m(s) = a(s). From then on Q(a(s) - m(s)) is sent, both ends add to m(s) what it
decodes to, and the next stage computes with m(s). As the parameters settle, the differences shrink,
and with them the error of quantisation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compressa.codecs import Codec, Draw
from compressa.errors import StateError

_Split = tuple[list[int], list[int]]


class Differences:
    """The estimates of one end, and messages that change them.

    Message of a tensor whose rows belong to samples: the rows of new samples, little-endian
    float32; then one payload of the codec for the differences of the others, in their order.

    Args:
        codec: What the differences are sent by.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._estimates: dict[tuple[int, int], torch.Tensor] = {}

    def wire_bytes(self, index: int, samples: Sequence[int], tensor: torch.Tensor) -> int:
        """Return the length of a message.

        Args:
            index: The how manieth tensor of a microbatch it is.
            samples: Of its rows.
            tensor: Has the shape.

        Raises:
            StateError: There are more or fewer rows.
        """
        if tensor.shape[:1] != (len(samples),):
            raise StateError(
                f"{len(samples)} samples were named for a microbatch whose tensor has the shape "
                f"{tuple(tensor.shape)}; give edge.samples one number for each row of the batch"
            )
        new, known = self._split(index, samples)
        row = tensor[0].numel()
        return 4 * row * len(new) + self._payload_bytes(row * len(known))

    def encode(
        self,
        index: int,
        samples: Sequence[int],
        x: torch.Tensor,
        message: torch.Tensor,
        draw: Draw,
    ) -> None:
        """Write the message of a tensor, and take it in, as who receives it will.

        Args:
            index: The how manieth tensor of a microbatch it is.
            samples: Of its rows.
            x: float32, contiguous; its elements are the rows, one after another.
            message: uint8, `wire_bytes` long; overwritten.
            draw: Counter of the random bits.
        """
        rows = x.view(len(samples), -1)
        new, known = self._split(index, samples)
        raw, payload = self._parts(message, rows.shape[1] * len(new))
        raw.view(rows[new].shape).copy_(rows[new])
        if known:
            change = rows[known] - self._known(index, samples, known)
            self._codec.encode(change.view(-1), payload, draw)
        self.decode(index, samples, message, torch.empty_like(x), draw)

    def decode(
        self,
        index: int,
        samples: Sequence[int],
        message: torch.Tensor,
        out: torch.Tensor,
        draw: Draw,
    ) -> None:
        """Take a message in; write the estimates that follow from it.

        Those that are not finite are forgotten, at both ends alike, and sent anew next time.

        Args:
            index: As of `encode`.
            samples: As of `encode`.
            message: uint8, `wire_bytes` long.
            out: float32, contiguous, with as many elements as the tensor; overwritten.
            draw: As of `encode`.

        Raises:
            PayloadError: It holds no payload of the codec.
        """
        rows = out.view(len(samples), -1)
        new, known = self._split(index, samples)
        raw, payload = self._parts(message, rows.shape[1] * len(new))
        rows[new] = raw.view(len(new), rows.shape[1])
        if known:
            change = torch.empty(rows.shape[1] * len(known), device=out.device)
            self._codec.decode(payload, change, draw)
            rows[known] = self._known(index, samples, known) + change.view(len(known), -1)
        for sample, row, finite in zip(samples, rows, rows.isfinite().all(1).tolist(), strict=True):
            if finite:
                self._estimates[index, sample] = row.clone()
            else:
                self._estimates.pop((index, sample), None)

    def _split(self, index: int, samples: Sequence[int]) -> _Split:
        """Return the rows of new samples, and those of others."""
        known = [row for row, sample in enumerate(samples) if (index, sample) in self._estimates]
        return sorted(set(range(len(samples))) - set(known)), known

    def _known(self, index: int, samples: Sequence[int], rows: list[int]) -> torch.Tensor:
        return torch.stack([self._estimates[index, samples[row]] for row in rows])

    def _parts(self, message: torch.Tensor, new_elems: int) -> tuple[torch.Tensor, torch.Tensor]:
        raw, payload = message.split([4 * new_elems, message.numel() - 4 * new_elems])
        return raw.view(torch.float32), payload

    def _payload_bytes(self, elems: int) -> int:
        return self._codec.wire_bytes(elems) if elems else 0
