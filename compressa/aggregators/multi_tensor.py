"""MultiTensor: scopes of a unit that are taken by one call; see `compressa.codecs.fused.Encoder`.

A bucket of DDP's mostly stays where it is, so what a call takes is worked out once. Gradients that
an optimizer lets go of lie elsewhere in each step: what can be told so is, by one table of
addresses, and all else is worked out anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from compressa.aggregators.base import Scope, State, StepContext, held_back, residual_key
from compressa.aggregators.feedback import FeedbackRule
from compressa.codecs.base import Codec
from compressa.codecs.fused import Averager, Decoder, Encoder, Item, Movable

T = TypeVar("T")

_MOST_ADDRESSES = 4  # where one unit's values may lie in turn
_dtype = attrgetter("dtype")


class _Remembered(Generic[T]):
    """What was made for memory of the last few addresses.

    Args:
        move: Tells what was made for gradients of some shapes that they lie elsewhere; returns
            whether it could.
    """

    def __init__(self, move: Callable[[object, Sequence[Tensor], Hashable], bool]) -> None:
        self._move = move
        self._made: dict[tuple[Hashable, Hashable], T] = {}

    def at(self, gradients: Sequence[Tensor], others: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for gradients that lie where these do; move it here, or make it.

        Args:
            gradients: Of the unit.
            others: Where all else lies.
            make: Makes it.
        """
        values, shapes = _addresses(gradients)
        where = values, (others, shapes)
        try:
            return self._made[where]
        except KeyError:
            for before in self._made:
                if before[1] == where[1] and self._move(self._made[before], gradients, shapes):
                    return self._made.setdefault(where, self._made.pop(before))
            while len(self._made) >= _MOST_ADDRESSES:
                del self._made[next(iter(self._made))]
            return self._made.setdefault(where, make())


class MultiTensor:
    """Knows what encodes and decodes all scopes of a payload in one call, wherever they lie.

    Args:
        codec: The codec.
        scopes: What the payload holds; at least one.
        starts: Where in the payload each scope's bytes begin.
        payload_bytes: Bytes of the payload, at most.
        state: Has the residuals.
        feedback: How these are added and kept; None if they are not.
    """

    def __init__(
        self,
        codec: Codec,
        scopes: Sequence[Scope],
        starts: Sequence[int],
        payload_bytes: int,
        state: State,
        feedback: FeedbackRule | None,
    ) -> None:
        self._fused = codec.fused
        self._scopes = list(zip(scopes, starts, strict=True))
        self._payload_bytes = payload_bytes
        self._state = state
        self._feedback = feedback
        names = [] if feedback is None else [scope.segment.parameter for scope in scopes]
        self._residuals = list(map(residual_key, names))
        self._gradients = np.array([scope.gradient for scope in scopes])
        self._offsets: dict[Hashable, npt.NDArray[np.int64]] = {}
        self._encoders: _Remembered[Encoder | None] = _Remembered(self._move)
        self._decoders: _Remembered[Decoder | None] = _Remembered(self._move)
        self._averagers: _Remembered[Averager | None] = _Remembered(self._move)

    def encoder(
        self, gradients: Sequence[Tensor], context: StepContext, payload: Tensor
    ) -> Encoder | None:
        """Return what encodes these gradients; None if each scope has to go by itself.

        Args:
            gradients: The unit's.
            context: The step; where a residual may have to wait, scopes go by themselves.
            payload: uint8, that of all scopes.
        """
        make, rule = self._fused.encoder, self._feedback
        if make is None or not adds_in_one_pass(rule, context):
            return None
        residuals = map(self._state.vectors.__getitem__, self._residuals)
        return self._encoders.at(
            gradients,
            (payload.data_ptr(), _addresses(list(residuals))),
            lambda: make(self._items(gradients, rule is not None), payload),
        )

    def decoder(self, gradients: Sequence[Tensor]) -> Decoder | None:
        """Return what decodes to these gradients; None if each scope has to go by itself."""
        make = self._fused.decoder
        if make is None:
            return None
        return self._decoders.at(
            gradients,
            None,
            lambda: make(self._items(gradients, False), self._payload_bytes),
        )

    def averager(
        self,
        gradients: Sequence[Tensor],
        context: StepContext,
        payload: Tensor,
        undo: Sequence[Tensor | None],
    ) -> Averager | None:
        """Return what makes the means of these gradients; None if each scope has to go by itself.

        Args:
            gradients: The unit's.
            context: The step; scopes go by themselves if one's residual has to wait.
            payload: uint8, that of all scopes.
            undo: By scope, the same memory in every step; see `Item`.
        """
        make, rule = self._fused.averager, self._feedback
        if make is None or (rule and not rule.conserves_mass):
            return None
        xs = (scope.of(gradients) for scope, _ in self._scopes)
        if rule and context.hold_zeros and any(held_back(x, context) for x in xs):
            return None
        residuals = map(self._state.vectors.__getitem__, self._residuals)
        return self._averagers.at(
            gradients,
            (payload.data_ptr(), _addresses(list(residuals))),
            lambda: make(self._items(gradients, rule is not None, undo), payload),
        )

    def _move(self, made: object, gradients: Sequence[Tensor], shapes: Hashable) -> bool:
        """Tell what was made where the scopes of gradients lie, if that can be told it."""
        if made is None:  # what can not be made for these can not be elsewhere
            return True
        if not isinstance(made, Movable) or self._state.device.type != "cpu":
            return False
        starts = np.fromiter(map(Tensor.data_ptr, gradients), np.int64, len(gradients))
        starts = starts[self._gradients]
        if shapes not in self._offsets:  # a gradient may have been cut to its scope before
            scopes = [scope.of(gradients).data_ptr() for scope, _ in self._scopes]
            self._offsets[shapes] = np.array(scopes, np.int64) - starts
        made.move(starts + self._offsets[shapes])
        return True

    def _items(
        self,
        gradients: Sequence[Tensor],
        feedback: bool,
        undo: Sequence[Tensor | None] | None = None,
    ) -> list[Item]:
        kept_of = [None] * len(self._scopes) if undo is None else undo
        return [
            Item(
                values=scope.of(gradients),
                start=start,
                parameter=scope.segment.parameter.index,
                first=scope.segment.start,
                residual=scope.residual(self._state) if feedback else None,
                undo=kept,
            )
            for (scope, start), kept in zip(self._scopes, kept_of, strict=True)
        ]


def adds_in_one_pass(rule: FeedbackRule | None, context: StepContext) -> bool:
    """Whether residuals are added and kept in the codec's own pass, where they are, in a step.

    Args:
        rule: How they are kept; None for no residuals, which hinder nothing.
        context: The step.
    """
    if rule is None:
        return True
    if context.hold_zeros or (rule.reset_steps and rule.resets(context)):
        return False
    return rule.decay == rule.beta == 1.0 and rule.dtype == "float32" and rule.momentum is None


def _addresses(tensors: Sequence[Tensor]) -> tuple[Hashable, Hashable]:
    """Where they lie; and what is not the same again unless they are what they were."""
    sizes = tuple(map(Tensor.numel, tensors))
    return tuple(map(Tensor.data_ptr, tensors)), (sizes, tuple(map(_dtype, tensors)))
