"""Sparse messages: some elements of each scope of a unit, as many as the data decide.

    header    24 bytes; see `compressa.codecs.payload`
    fields    one after the other, each padded with zeros to a multiple of 8 bytes

Elements are two fields: their number (u32), and, if there are any, values and indices as in `topk`,
with indices counted from the beginning of the range that both ends know them to lie in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from compressa.aggregators.base import StepContext
from compressa.arrays import as_array
from compressa.codecs._sparse import F32, U8, U32, SparseForm
from compressa.codecs.payload import (
    HEADER_BYTES,
    Header,
    check_countable,
    check_header,
    write_header,
)
from compressa.collectives.accumulator import Span
from compressa.errors import PayloadError
from compressa.kernels.scratch import scratch
from compressa.kernels.select import select_above
from compressa.parameters import Layout

_FIELD_BYTES = 8


class Entries(NamedTuple):
    """Some elements of a vector, or of a range of it.

    Attributes:
        indices: uint32[m], increasing; in a range, counted from its beginning.
        values: float32[m].
    """

    indices: U32
    values: F32

    @classmethod
    def room(cls, count: int) -> Entries:
        """Return memory for so many elements, on the CPU; zeros."""
        return cls(np.zeros(count, np.uint32), np.zeros(count, np.float32))

    @property
    def elems(self) -> int:
        """How many."""
        return self.indices.size

    def part(self, start: int, stop: int) -> Entries:
        """Return the elements from one index in the list to another, in the same memory.

        Args:
            start: The first.
            stop: One past the last.
        """
        return Entries(self.indices[start:stop], self.values[start:stop])

    def put(self, start: int, others: Entries) -> int:
        """Copy others to an index of this list, which they may overlap.

        Args:
            start: The index of the first.
            others: All of them must fit.

        Returns:
            One past the index of the last.
        """
        stop = start + others.elems
        self.indices[start:stop], self.values[start:stop] = others
        return stop

    def keep_largest(self, count: int) -> Entries:
        """Move the largest magnitudes to the front, and return them; of equal ones the first."""
        if count < self.elems:
            chosen = scratch("sparse messages.chosen", count, np.uint32)
            values = scratch("sparse messages.values", count, np.float32)
            select_above(self.values, 0.0, chosen, values)
            self.indices[:count], self.values[:count] = self.indices[chosen], values
        return self.part(0, count)


def padded(size_bytes: int) -> int:
    """Return the bytes of a field that holds so many."""
    return -(-size_bytes // _FIELD_BYTES) * _FIELD_BYTES


def entries_bytes(most: int, elems: int) -> int:
    """Return the most bytes that some elements take in a message, their number included.

    Args:
        most: How many they may be.
        elems: How many elements the range may have in which they lie.
    """
    # Of all formats this one alone never shrinks as the range or the number grows.
    return _FIELD_BYTES + padded(SparseForm("", indices="bits").bytes(most, elems))


class Writer:
    """Writes a message's fields.

    Args:
        payload: uint8, with room for the header and all fields.
        form: How elements are laid out.

    Attributes:
        end: Where the next field begins.
    """

    def __init__(self, payload: torch.Tensor, form: SparseForm) -> None:
        self._packed: U8 = as_array(payload)
        self._form = form
        self.end = HEADER_BYTES

    def array(self, values: npt.NDArray[Any]) -> None:
        """Write numbers, as a field of their own: 1-D, contiguous, of any dtype."""
        self._room(values.nbytes)[:] = values.view(np.uint8)

    def number(self, value: int) -> None:
        """Write one number, of 32 bits."""
        self.array(np.array([value], np.uint32))

    def entries(self, entries: Entries, span: Span) -> None:
        """Write elements that lie in a range: their number, then, if any, values and indices.

        Args:
            entries: Their indices are those in the scope, increasing, and all in `span`.
            span: The range, in the scope; messages count indices from its start.
        """
        count = entries.elems
        self.number(count)
        if count:
            room = self._room(self._form.bytes(count, span.elems))
            self._form.values(room, count)[:] = entries.values
            inside = scratch("sparse messages.inside", count, np.uint32)
            np.subtract(entries.indices, np.uint32(span.start), out=inside)
            self._form.write(room, span.elems, inside, entries.values)

    def _room(self, size_bytes: int) -> U8:
        """The next field; its padding is cleared, so that messages are the same in every run."""
        start, self.end = self.end, self.end + padded(size_bytes)
        self._packed[start + size_bytes : self.end] = 0
        return self._packed[start : start + size_bytes]


class Reader:
    """Reads a message's fields, and refuses what can not be.

    Args:
        payload: uint8, whose header is checked.
        form: How elements are laid out.
    """

    def __init__(self, payload: torch.Tensor, form: SparseForm) -> None:
        self._packed: U8 = as_array(payload)
        self._form = form
        self._end = HEADER_BYTES

    def floats(self, count: int) -> F32:
        """Read so many numbers, where they are.

        Raises:
            PayloadError: The message ends before them; likewise below.
        """
        values: F32 = self._field(4 * count).view(np.float32)
        return values

    def numbers(self, count: int) -> U32:
        """Read so many numbers of 32 bits, where they are."""
        values: U32 = self._field(4 * count).view(np.uint32)
        return values

    def entries(self, elems: int, most: int) -> Entries:
        """Read elements of a range; valid until the next call on this thread.

        Args:
            elems: How many elements the range has.
            most: How many may come.

        Raises:
            PayloadError: More came, or indices do not increase, or leave the range.
        """
        count = int(self.numbers(1)[0])
        if count > min(most, elems):
            raise PayloadError(f"{count} elements came of {elems} where at most {most} are due")
        if not count:
            return Entries.room(0)
        return Entries(*self._form.read(self._field(self._form.bytes(count, elems)), elems, count))

    def finish(self) -> None:
        """Raise PayloadError unless all has been read."""
        if self._end != self._packed.size:
            raise PayloadError(f"its fields end at byte {self._end} of {self._packed.size}")

    def _field(self, size_bytes: int) -> U8:
        start, self._end = self._end, self._end + padded(size_bytes)
        if self._end > self._packed.size:
            raise PayloadError(f"it has {self._packed.size} bytes, and a field ends at {self._end}")
        return self._packed[start : start + size_bytes]


@dataclass(frozen=True)
class Envelope:
    """What a unit's messages have in common.

    Attributes:
        form: How elements are laid out.
        wire_id: Of the compressor.
        layout: The unit.
        body_bytes: Most bytes of a message's fields.

    Raises:
        ConfigError: No header can count as many.
    """

    form: SparseForm
    wire_id: int
    layout: Layout
    body_bytes: int

    def __post_init__(self) -> None:
        check_countable(self.form.codec, self.layout.elems, self.body_bytes)

    @property
    def capacity_bytes(self) -> int:
        """Most bytes of a message."""
        return HEADER_BYTES + self.body_bytes

    def writer(self, buffer: torch.Tensor) -> Writer:
        """Begin a message in a buffer: uint8, at least `capacity_bytes` long."""
        return Writer(buffer, self.form)

    def seal(self, buffer: torch.Tensor, end: int, context: StepContext) -> torch.Tensor:
        """Write the header of a message, and return the message.

        Args:
            buffer: uint8; its fields are written.
            end: `Writer.end`, one past the last byte of these.
            context: The step.

        Returns:
            The first `end` bytes of `buffer`, in its memory.
        """
        write_header(buffer, self._header(end - HEADER_BYTES, context))
        return buffer[:end]

    def open(self, message: torch.Tensor, context: StepContext, sender: int) -> Reader:
        """Check a message's header.

        Args:
            message: uint8, as it came.
            context: The step.
            sender: The rank that it came from.

        Returns:
            What reads its fields, from the first.

        Raises:
            PayloadError: It is not what `sender` owes for the step.
        """
        check_header(message, self._header(self.body_bytes, context), sender, exact=False)
        return Reader(message, self.form)

    def _header(self, body_bytes: int, context: StepContext) -> Header:
        layout = self.layout
        head = (self.wire_id, context.epoch, context.step, layout.unit, layout.elems)
        return Header(*head, body_bytes)
