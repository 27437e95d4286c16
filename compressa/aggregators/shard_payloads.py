"""ShardPayloads: a unit's shards, each as a payload, and what is alike in them taken in one call.

To begin a kernel takes a CPU some Python, and a GPU microseconds. What a rank sends to all others
is made at one time, and so is what they share decoded; where payloads lie side by side in memory,
their scopes are worked on as if these were one payload's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from compressa.aggregators.base import Scope, StepContext, World
from compressa.aggregators.feedback import FeedbackRule
from compressa.aggregators.multi_tensor import MultiTensor
from compressa.aggregators.scopes import ScopePayload
from compressa.codecs.base import Codec
from compressa.collectives.scratch import side_by_side, zeros_side_by_side


class ShardPayloads:
    """Encodes and decodes the shards of all ranks.

    Args:
        codec: Of all scopes.
        unit: Number of the unit.
        cut: By rank, the scopes of its shard.
        world: Rank, seed and state.
        feedback: How encoding adds and keeps residuals; None if it does not.

    Attributes:
        payloads: By rank.
        buffers: By rank, memory for its shard's payload; the own one is for its mean.

    Raises:
        ConfigError: As `ScopePayload`.
    """

    def __init__(
        self,
        codec: Codec,
        unit: int,
        cut: Sequence[Sequence[Scope]],
        world: World,
        *,
        feedback: FeedbackRule | None,
    ) -> None:
        self.payloads = [ScopePayload(codec, unit, own, world, feedback=feedback) for own in cut]
        sizes = [payload.wire_bytes for payload in self.payloads]
        self._memory, self.buffers = zeros_side_by_side(sizes, world.device)
        self._codec, self._world, self._feedback = codec, world, feedback
        others = [self.payloads[peer] for peer in world.peers]
        self._takes_multi_tensor = len(others) > 1 and all(
            payload.takes_multi_tensor and payload.exact for payload in others if payload.scopes
        )
        firsts, end = side_by_side(sizes)
        self._given = self._multi_tensor(world.peers, [firsts[peer] for peer in world.peers], end)
        self._shared: dict[tuple[int, ...], tuple[list[int], MultiTensor | None]] = {}

    def encode(self, gradients: Sequence[torch.Tensor], context: StepContext) -> list[torch.Tensor]:
        """Encode every other rank's shard; return, by rank, the filled front of its buffer.

        Args:
            gradients: The unit's.
            context: The step.
        """
        sent, peers = list(self.buffers), self._world.peers
        encoder = self._given.encoder(gradients, context, self._memory) if self._given else None
        if encoder is None:
            for peer in peers:
                sent[peer] = self.payloads[peer].encode(gradients, context, self.buffers[peer])
            return sent
        some = next(self.payloads[peer] for peer in peers if self.payloads[peer].scopes)
        loss_scale = 1.0 if self._feedback is None else context.loss_scale
        encoder.encode(some.draw(some.scopes[0], context), loss_scale)
        for peer in peers:
            payload = self.payloads[peer]
            sent[peer] = payload.seal(self.buffers[peer], context, payload.body_bytes)
        return sent

    def decode(
        self,
        means: Mapping[int, torch.Tensor],
        gradients: Sequence[torch.Tensor],
        context: StepContext,
    ) -> None:
        """Write the means that others share to `gradients`.

        Args:
            means: By owner, payloads, checked.
            gradients: The unit's, float32 or of 16 bits, rounded to once.
            context: The step.
        """
        owners, payloads = tuple(means), list(means.values())
        firsts, multi_tensor = self._shared_by(owners)
        if multi_tensor is not None and _lie_there(payloads, firsts):
            decoder = multi_tensor.decoder(gradients)
            if decoder is not None:
                end = firsts[-1] + payloads[-1].numel()
                decoder.decode(payloads[0].as_strided((end,), (1,)))
                return
        for owner, payload in means.items():
            self.payloads[owner].decode(payload, gradients, context, owner)

    def _shared_by(self, owners: tuple[int, ...]) -> tuple[list[int], MultiTensor | None]:
        """Where payloads of some shards begin if they lie side by side; what takes all then."""
        if owners not in self._shared:
            sizes = [self.payloads[owner].wire_bytes for owner in owners]
            firsts, _ = side_by_side(sizes)
            multi_tensor = self._multi_tensor(owners, firsts, firsts[-1] + sizes[-1])
            self._shared[owners] = firsts, multi_tensor
        return self._shared[owners]

    def _multi_tensor(
        self, owners: Sequence[int], firsts: Sequence[int], size_bytes: int
    ) -> MultiTensor | None:
        """What takes the scopes of several shards, whose payloads begin at these bytes."""
        shards = [(first, self.payloads[r]) for r, first in zip(owners, firsts, strict=True)]
        scopes = [scope for _, payload in shards for scope in payload.scopes]
        if not scopes or not self._takes_multi_tensor:
            return None
        starts = [first + start for first, payload in shards for start in payload.starts]
        state = self._world.state
        return MultiTensor(self._codec, scopes, starts, size_bytes, state, self._feedback)


def _lie_there(payloads: Sequence[torch.Tensor], firsts: Sequence[int]) -> bool:
    """Whether payloads begin so many bytes after the first one, in the same memory."""
    memory, begin = payloads[0].untyped_storage().data_ptr(), payloads[0].data_ptr()
    return all(
        payload.untyped_storage().data_ptr() == memory and payload.data_ptr() == begin + first
        for payload, first in zip(payloads, firsts, strict=True)
    )
