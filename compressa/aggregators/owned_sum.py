"""OwnedSum: a sum by owners of which each scope says what is given, made of it, and shared.

What `round_robin` carries: each rank gives every owner a message, the owner makes one of what it
was given, and shares it with all. A message has the parts of all scopes, of any length up to a
bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from compressa.aggregators.shards import ShardSum
from compressa.aggregators.sparse_messages import Entries, Envelope, Reader, Writer
from compressa.collectives.accumulator import Span
from compressa.errors import PayloadError


class ScopeSum(ABC):
    """One scope's part of it, in one step.

    An owner is given messages by all other ranks (`give`, `read_given`), makes one of them
    (`make`), and shares it with all (`share`, `check_shared`, `take_shared`).
    """

    @abstractmethod
    def give(self, writer: Writer, owner: int) -> None:
        """Write what another rank is given.

        Args:
            writer: Of the message to it.
            owner: Which rank.
        """

    @abstractmethod
    def read_given(self, reader: Reader, sender: int) -> Entries:
        """Read what another rank gives, and check it; valid until the next call.

        Args:
            reader: Of its message, behind the parts of the scopes before this one.
            sender: Which rank.

        Raises:
            PayloadError: It is not what that rank owes; the message says nothing of the sender.
        """

    @abstractmethod
    def make(self, readers: Mapping[int, Reader]) -> None:
        """Make what is shared.

        Args:
            readers: By every other rank, in their order, what reads its message, which was checked.
        """

    @abstractmethod
    def share(self, writer: Writer) -> None:
        """Write what `make` has made.

        Args:
            writer: Of the one message to all.
        """

    @abstractmethod
    def check_shared(self, reader: Reader, owner: int) -> None:
        """Read what another rank shares, and check it; nothing is kept.

        Args:
            reader: Of its message, behind the parts of the scopes before this one.
            owner: Which rank.

        Raises:
            PayloadError: It is not what that rank owes; the message says nothing of the sender.
        """

    @abstractmethod
    def take_shared(self, reader: Reader, owner: int) -> None:
        """Read it again after `check_shared`, and keep it.

        Args:
            reader: Of the same message, at the same field.
            owner: As before.
        """


@dataclass(eq=False)
class OwnedSum(ShardSum):
    """One step's messages of all scopes.

    Attributes:
        rank: This rank.
        parts: By scope.
        envelope: What messages have in common.
        buffers: By rank, memory for what it is given; the own one for what is shared.
    """

    rank: int
    parts: Sequence[ScopeSum]
    envelope: Envelope
    buffers: Sequence[torch.Tensor]
    messages: list[torch.Tensor] = field(init=False)

    exact = False

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks, own = range(len(self.buffers)), self.rank
        self.messages = [self.buffers[r] if r == own else self._written(r, to=r) for r in ranks]

    def check(self, span: Span, message: torch.Tensor, sender: int) -> None:
        """Raise PayloadError unless a message is what `sender` owes for the step."""
        given = self.shards.owners[span] == self.rank
        try:
            reader = self.envelope.open(message, self.context, sender)
            for part in self.parts:
                (part.read_given if given else part.check_shared)(reader, sender)
            reader.finish()
        except PayloadError as error:
            raise PayloadError(f"from rank {sender}: {error}") from error

    def summed(
        self, span: Span, after: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Make of what came, and of what this rank gives itself, what is shared."""
        came = dict(enumerate(before)) | dict(enumerate(after, self.rank + 1))
        readers = {
            sender: self.envelope.open(message, self.context, sender)
            for sender, message in came.items()
        }
        for part in self.parts:
            part.make(readers)
        return self._written(self.rank, to=None)

    def take(self, shared: Sequence[tuple[Span, torch.Tensor]]) -> None:
        """Keep what other ranks share."""
        for span, message in shared:
            owner = self.shards.owners[span]
            reader = self.envelope.open(message, self.context, owner)
            for part in self.parts:
                part.take_shared(reader, owner)

    def _written(self, room: int, to: int | None) -> torch.Tensor:
        """What is given to a rank, or, with None, shared with all: in one of the buffers."""
        buffer = self.buffers[room]
        writer = self.envelope.writer(buffer)
        for part in self.parts:
            if to is None:
                part.share(writer)
            else:
                part.give(writer, to)
        return self.envelope.seal(buffer, writer.end, self.context)
