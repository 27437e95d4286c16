"""One scope encoded with its residual, and decoded to whatever dtype its gradient has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from compressa.aggregators.base import Scope, StepContext, World, held_back
from compressa.aggregators.feedback import FeedbackRule, Residual
from compressa.arrays import put, scratch_tensor, widened
from compressa.codecs.base import Codec, Draw
from compressa.kernels.threads import over_slices

_PIECE_ELEMS = 1 << 19  # two mebibytes of float32 stay in the cache; less is not worth the calls

Cut = Callable[[torch.Tensor], torch.Tensor]
"""The payload of a scope -> that of a piece of it."""


def residuals_of(
    scopes: Sequence[Scope], rule: FeedbackRule | None, world: World
) -> list[Residual | None]:
    """Return each scope's residual, zeros in `world.state` at first; None without a rule.

    Args:
        scopes: What a payload holds.
        rule: How residuals are kept.
        world: Has the state, and the number of ranks.
    """
    if rule is None:
        return [None] * len(scopes)
    return [Residual(scope.segment, rule, world.state, world.size) for scope in scopes]


def encode(
    codec: Codec,
    x: torch.Tensor,
    residual: Residual | None,
    room: torch.Tensor,
    draw: Draw,
    context: StepContext,
) -> int:
    """Encode one scope, with its residual unless that must wait.

    Args:
        codec: What encodes.
        x: 1-D, contiguous; float32, float16 or bfloat16.
        residual: What earlier steps did not send; updated. None without feedback.
        room: uint8, at least `codec.wire_bytes` of the scope; receives the payload.
        draw: Counter of the random bits.
        context: The step.

    Returns:
        The payload's length in bytes.
    """
    if not codec.takes_half:
        x = widened(x, "scope")
    if residual is None or held_back(x, context):
        return codec.encode(x, room, draw)
    return residual.encode(codec, x, room, draw, context)


def decode(codec: Codec, payload: torch.Tensor, out: torch.Tensor, draw: Draw) -> None:
    """Decode one scope; what is not float32 is rounded once.

    Args:
        codec: What decodes.
        payload: uint8, of this scope alone.
        out: 1-D, contiguous; float32, float16 or bfloat16.
        draw: Counter of the random bits.

    Raises:
        PayloadError: It can not be decoded.
    """
    if out.dtype is torch.float32:
        codec.decode(payload, out, draw)
    else:
        _in_pieces(codec, out, lambda cut, values: codec.decode(cut(payload), values, draw))


def decode_sum(
    codec: Codec, sent: Sequence[tuple[torch.Tensor, Draw]], out: torch.Tensor, weight: float
) -> None:
    """Write `weight` times the sum of one scope's payloads, in order, in float32, rounded once.

    Args:
        codec: What decodes.
        sent: Each rank's payload, uint8, checked before, and the counter of its random bits.
        out: 1-D, contiguous; float32, float16 or bfloat16.
        weight: Such as 1 / P.
    """

    def add_up(cut: Cut, values: torch.Tensor) -> None:
        values.zero_()
        for payload, draw in sent:  # one by one: each cut is in the same memory
            codec.decode_add(cut(payload), values, weight, draw)

    if codec.fused.decode_sum is not None:
        codec.fused.decode_sum(sent, out, weight)
    elif out.dtype is torch.float32:
        add_up(lambda payload: payload, out)  # without another look: all were checked on arrival
    else:
        _in_pieces(codec, out, add_up)


def _in_pieces(codec: Codec, out: torch.Tensor, work: Callable[[Cut, torch.Tensor], None]) -> None:
    """Have `work` fill float32 memory that stays in the cache, and round that to `out`.

    The payload of a codec without sections can not be cut, so its memory is as long as `out`.
    """
    elems, block = out.numel(), codec.block_elems
    step = -(-_PIECE_ELEMS // block) * block if codec.sections(elems) else max(elems, 1)

    def fill(low: int, high: int) -> None:
        for start in range(low, high, step):
            stop = min(start + step, high)
            values = scratch_tensor("piece", stop - start, torch.float32, out.device)
            work(partial(codec.cut, elems=elems, start=start, stop=stop), values)
            put(values, out[start:stop])

    if step < elems:
        over_slices(elems, step, fill)
    else:
        fill(0, elems)
