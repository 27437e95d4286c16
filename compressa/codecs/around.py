"""AroundCodec: what wrappers of a codec share; `codec_of` looks through wrappers of any kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compressa.codecs.base import Codec
from compressa.compressor import Compressor, Wrapper


@dataclass(frozen=True, kw_only=True)
class AroundCodec(Wrapper):
    """A wrapper that needs a codec, and nothing else, inside.

    Args:
        codec: What encodes.
    """

    codec: Codec

    @property
    def inner(self) -> Codec:
        """The codec."""
        return self.codec

    def around(self, inner: Compressor) -> Compressor:
        """Return the same around another codec."""
        assert isinstance(inner, Codec)  # only wrappers choose something else
        return replace(self, codec=inner)


def codec_of(compressor: Compressor) -> Codec | None:
    """Return the codec that a compressor is, or is around; None if it exchanges in another way."""
    while isinstance(compressor, Wrapper) and not isinstance(compressor, Codec):
        compressor = compressor.inner
    return compressor if isinstance(compressor, Codec) else None
