"""AroundCompressor: what wrappers of any compressor share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compressa.compressor import Compressor, Wrapper


@dataclass(frozen=True, kw_only=True)
class AroundCompressor(Wrapper):
    """A wrapper of whatever compresses.

    Args:
        compressor: What it is around.
    """

    compressor: Compressor

    @property
    def inner(self) -> Compressor:
        """The compressor."""
        return self.compressor

    def around(self, inner: Compressor) -> Compressor:
        """Return the same around another compressor."""
        return replace(self, compressor=inner)
