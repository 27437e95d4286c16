"""SparseSum: partial sums of which only the largest elements are kept, and sent as in top-k.

A rank begins with the largest elements of its own p = g + e, each divided by the number of ranks,
so that sums overflow only where the mean does. What it gives or shares is the payload of `TopK`.
What it is given is added, and the largest elements of the sum are kept; the others return to the
residual of the rank that leaves them out, as does what a narrow wire format loses. So nothing is
lost, whoever has left it out, and each rank knows what it did, so that a skipped step is undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from compressa.aggregators.base import Scope, StepContext, World, held_back, whole_scopes
from compressa.aggregators.scopes import ScopePayload
from compressa.arrays import as_array, scratch_tensor
from compressa.codecs import TopK
from compressa.codecs.payload import HEADER_BYTES
from compressa.collectives.accumulator import Accumulator, Author, Span
from compressa.errors import PayloadError
from compressa.kernels.sparse_sum import sum_sparse
from compressa.kernels.topk import return_unsent, select_top_k
from compressa.parameters import Layout

_QUICK_KEPT = 1 << 11  # elements that are merged sooner than handed to another thread


class SparseUnit:
    """The scopes of a unit on one rank, and what returns to their residuals.

    Args:
        codec: How many elements are kept, and their wire format.
        layout: The unit.
        world: Ranks and state; the residuals are allocated now.

    Attributes:
        payload: Lays out a message of all scopes.
        parts: By scope, the largest elements.
        kept: How many these are in all.
        message: Where messages are made.
    """

    def __init__(self, codec: TopK, layout: Layout, world: World) -> None:
        scopes = whole_scopes(layout)
        self.payload = ScopePayload(codec, layout.unit, scopes, world, feedback=None)
        self.parts = [_Part(codec, scope, world) for scope in scopes]
        self.kept = sum(codec.kept(scope.segment.elems) for scope in scopes)
        self.message = self.payload.buffer()

    def begin(self, gradients: Sequence[torch.Tensor], context: StepContext) -> SparseSum:
        """Begin the sum of a step: select, and leave the rest in the residuals.

        Args:
            gradients: The unit's, float32 or of 16 bits.
            context: The step.
        """
        for part in self.parts:
            part.begin(gradients, context)
        return SparseSum(self, context)

    def undo(self) -> None:
        """Give back to the residuals what the last step took, and take back what it returned."""
        for part in self.parts:
            part.undo()


class SparseSum(Accumulator):
    """One step's sums of all scopes of a unit, as one message: they can not be cut.

    It is for algorithms in which every rank's values are added once, as in a tree: ranks that made
    the same sum would return what they leave out several times.

    Args:
        unit: Whose sums; they have begun.
        context: The step.
    """

    def __init__(self, unit: SparseUnit, context: StepContext) -> None:
        elems = unit.payload.elems
        self.span = Span(0, elems)
        self.align_elems = max(elems, 1)  # all of them: it is cut nowhere
        self._payload = unit.payload
        self._parts = unit.parts
        self._kept = unit.kept
        self._message = unit.message
        self._context = context
        self._result: torch.Tensor | None = None

    def write(self, gradients: Sequence[torch.Tensor]) -> None:
        """Write the sum, that is the mean, over the gradients; the same bits on every rank."""
        result = self._result
        if result is None:  # a rank alone shares nothing
            result = self.share(self.span, Author(0))
        self._payload.decode(result, gradients, self._context, sender=0)

    def capacity_bytes(self, span: Span) -> int:
        """A header, and the scopes' values and indices."""
        return self._payload.wire_bytes

    def quick(self, elems: int) -> bool:
        """Unless many are kept."""
        return self._kept <= _QUICK_KEPT

    def give(self, span: Span) -> torch.Tensor:
        """Encode."""
        offset = HEADER_BYTES
        for part in self._parts:
            room = self._payload.room(self._message, offset, part.scope)
            part.encode(room)
            offset = self._payload.advance(self._message, offset, room.numel())
        return self._payload.seal(self._message, self._context, offset - HEADER_BYTES)

    def share(self, span: Span, author: Author) -> torch.Tensor:
        """Encode; what counts from now on is what the message decodes to."""
        self._result = self.give(span)
        return self._result

    def check(self, span: Span, message: torch.Tensor, sender: int) -> None:
        """Check the header, every scope's length and its indices."""
        try:
            self._payload.check(message, self._context, sender)
        except PayloadError as error:
            raise PayloadError(f"from rank {sender}: {error}") from error

    def add(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor] = ()
    ) -> None:
        """Add one message after the other, and keep the largest of each sum."""
        for message in (*before, *after):
            for part, (_, packed) in zip(self._parts, self._payload.parts(message), strict=True):
                part.add(packed)

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """Remember the result, which stays where it is until `write`."""
        [(_, self._result)] = shared


class _Note(NamedTuple):
    """What has returned to a residual in a step.

    Attributes:
        bits: int32[m], the bits of uint32 indices.
        values: float32[m], shares of the mean; zero where nothing returned.
    """

    bits: torch.Tensor
    values: torch.Tensor

    @property
    def indices(self) -> npt.NDArray[np.uint32]:
        """The indices as kernels take them."""
        return as_array(self.bits).view(np.uint32)


class _Part:
    """The largest elements of one scope of a sum: increasing indices, and shares of the mean.

    Attributes:
        scope: The scope.
    """

    def __init__(self, codec: TopK, scope: Scope, world: World) -> None:
        self.scope = scope
        self._form, self._elems = codec.form, scope.segment.elems
        self._kept = codec.kept(self._elems)
        self._world = world
        self._residual = scope.residual(world.state)
        self._own, self._sum = self._new_note(self._kept), self._new_note(self._kept)
        self._in_order = torch.arange(self._kept, dtype=torch.int32, device=world.device)
        self._notes: list[_Note] = []
        self._noted = 0
        self._loss_scale = self._share_scale = 1.0

    def begin(self, gradients: Sequence[torch.Tensor], context: StepContext) -> None:
        """Select this rank's own."""
        x, own = self.scope.of(gradients), self._own
        self._noted = 0
        self._loss_scale, self._share_scale = (
            context.loss_scale,
            context.loss_scale / self._world.size,
        )
        select_top_k(
            as_array(x),
            self._kept,
            own.indices,
            as_array(own.values),
            residual=None if held_back(x, context) else as_array(self._residual),
            loss_scale=self._loss_scale,
        )
        self._sum.bits.copy_(own.bits)
        self._world.divide(own.values, out=self._sum.values)

    def add(self, packed: torch.Tensor) -> None:
        """Add another rank's, keep the largest, and return the others."""
        theirs = self._form.read(as_array(packed), self._elems, self._kept)
        own, note = self._sum, self._note(2 * self._kept)
        device = self._residual.device
        sums = scratch_tensor("sparse sum", 2 * self._kept, torch.float32, device)
        sum_sparse(own.indices, as_array(own.values), *theirs, note.indices, as_array(sums))
        chosen = scratch_tensor("sparse sum.chosen", self._kept, torch.int32, device)
        select_top_k(
            as_array(sums),
            self._kept,
            as_array(chosen).view(np.uint32),
            as_array(own.values),
            residual=as_array(note.values.zero_()),
        )
        torch.index_select(note.bits, 0, chosen, out=own.bits)
        self._return(note, self._share_scale)

    def encode(self, room: torch.Tensor) -> None:
        """Write the payload, and return what it loses."""
        packed, total = as_array(room), self._sum
        values = self._form.values(packed, self._kept)
        if self._form.lossless:
            room[: 4 * self._kept].view(torch.float32).copy_(total.values)
            self._form.write(packed, self._elems, total.indices, values)
            return
        exact = as_array(total.values)
        sent = self._form.write(packed, self._elems, total.indices, exact)
        note = self._note(self._kept)
        note.bits.copy_(total.bits)
        in_order = as_array(self._in_order).view(np.uint32)
        return_unsent(as_array(note.values.zero_()), in_order, exact, sent)
        self._return(note, self._share_scale)

    def undo(self) -> None:
        """Make the residual what it was before the step, with the step's gradient added."""
        for note in reversed(self._notes[: self._noted]):
            self._return(note, -self._share_scale)
        self._noted = 0
        self._return(self._own, self._loss_scale)

    def _return(self, note: _Note, loss_scale: float) -> None:
        """Add values to the residual, or subtract them where the loss scale is negative."""
        values = as_array(note.values)
        zeros = scratch_tensor("sparse sum.zeros", values.size, torch.float32, note.bits.device)
        pair = (values, as_array(zeros.zero_()))
        exact, sent = pair if loss_scale > 0 else pair[::-1]
        residual = as_array(self._residual)
        return_unsent(residual, note.indices, exact, sent, loss_scale=abs(loss_scale))

    def _note(self, size: int) -> _Note:
        """Return memory for what returns; a step returns as many times as the one before it."""
        self._noted += 1
        if self._noted > len(self._notes):
            self._notes.append(self._new_note(size))
        return self._notes[self._noted - 1]

    def _new_note(self, size: int) -> _Note:
        device = self._world.device
        bits = torch.zeros(size, dtype=torch.int32, device=device)
        return _Note(bits, torch.zeros(size, device=device))
