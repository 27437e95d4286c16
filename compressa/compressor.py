"""The contract of everything that a configuration can name as a compressor.

A compressor is a frozen, keyword-only dataclass of hyper-parameters. Codecs
(`compressa.codecs`), aggregators of several rounds (`compressa.aggregators`) and wrappers
(`compressa.wrappers`) all are compressors, so that each can stand where another does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar

from compressa.bias import Biased, Unbiased
from compressa.parameters import ParameterInfo


class Granularity(Enum):
    """What must be compressed together, and so where a parameter may be cut."""

    ELEMENT = "element"  # anywhere
    BLOCK = "block"  # at multiples of `Compressor.block_elems`
    PARAMETER = "parameter"  # nowhere: statistics span the parameter
    MATRIX = "matrix"  # nowhere, and the shape matters


@dataclass(frozen=True, kw_only=True)
class Compressor(ABC):
    """Hyper-parameters of one way to make gradients smaller; what a configuration builds.

    It keeps no state and may be shared: what does is the aggregator that is made for a unit.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def granularity(self) -> Granularity:
        """What must be compressed together."""

    @property
    def block_elems(self) -> int:
        """Cuts inside a parameter fall on multiples of this (1: anywhere)."""
        return 1

    @property
    def breakpoints(self) -> tuple[int, ...]:
        """Steps at which `at` changes its answer, ascending; empty for most."""
        return ()

    @property
    def shared_stream(self) -> bool:
        """Whether all ranks draw the same random bits, so that their errors do not average out."""
        return False

    @property
    def conserves_mass(self) -> bool:
        """Whether its residuals, if it keeps any, hold all that it did not deliver, to rounding.

        Not so where they decay or are kept in fewer bits.
        """
        return True

    @property
    def built_in_feedback(self) -> bool:
        """Whether it keeps residuals by itself, which no setting can switch off or change."""
        return False

    def at(self, step: int) -> Compressor:
        """Return the compressor in force at a step (a warm-up is dense at first).

        Args:
            step: Number of the optimizer's step, from 0.
        """
        return self

    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        """Return the compressor for one parameter: itself, unless small ones are exempt."""
        return self

    def exempt(self, parameter: ParameterInfo, dense: Compressor) -> Compressor:
        """Return what carries a parameter that is too small to compress: `dense` for most.

        Args:
            parameter: The small one.
            dense: What carries others of its size.
        """
        return dense

    def bias_of_mean(self, elems: int, size: int) -> Unbiased | Biased | None:
        """Return an error bound of the mean over ranks; None if there is no proof of one.

        With gradients g_i of `elems` elements on `size` ranks, E||out - mean||^2 is at most the
        bound times sum_i ||g_i||^2 / size^2, which is what `size` independent codecs with this
        bound would have. Codecs declare `bias` instead.

        Args:
            elems: Of a gradient.
            size: Number of ranks.
        """
        return None

    @abstractmethod
    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the most bytes of a gradient's payload, headers apart.

        Args:
            shape: Of the gradient; (elems,) of a part of one.
        """


@dataclass(frozen=True, kw_only=True)
class Wrapper(Compressor):
    """A compressor around another: what it does not say itself is as the inner one says."""

    wraps: ClassVar[str] = "compressor"
    """The hyper-parameter that it is around: a "compressor" of any kind, or a "codec"."""

    @property
    def inner(self) -> Compressor:
        """What it is around."""
        inner: Compressor = getattr(self, self.wraps)
        return inner

    def around(self, inner: Compressor) -> Compressor:
        """Return the same wrapper, with its own settings, around another compressor."""
        changed: dict[str, Any] = {self.wraps: inner}
        return replace(self, **changed)

    @property
    def granularity(self) -> Granularity:
        """As the inner one says: what must be compressed together."""
        return self.inner.granularity

    @property
    def block_elems(self) -> int:
        """As the inner one says: cuts fall on multiples of it."""
        return self.inner.block_elems

    @property
    def breakpoints(self) -> tuple[int, ...]:
        """As the inner one says: steps at which `at` changes its answer, ascending."""
        return self.inner.breakpoints

    @property
    def shared_stream(self) -> bool:
        """As the inner one says: whether all ranks draw the same random bits."""
        return self.inner.shared_stream

    @property
    def conserves_mass(self) -> bool:
        """As the inner one says: whether its residuals hold all that it did not deliver."""
        return self.inner.conserves_mass

    @property
    def built_in_feedback(self) -> bool:
        """As the inner one says: whether it keeps residuals by itself."""
        return self.inner.built_in_feedback

    def at(self, step: int) -> Compressor:
        """Return this wrapper around the inner one that is in force at a step."""
        now = self.inner.at(step)
        return self if now is self.inner else self.around(now)

    def for_parameter(self, parameter: ParameterInfo) -> Compressor:
        """Return this wrapper around the inner one for a parameter."""
        own = self.inner.for_parameter(parameter)
        return self if own is self.inner else self.around(own)

    def exempt(self, parameter: ParameterInfo, dense: Compressor) -> Compressor:
        """Return `dense`, or this wrapper around what the inner one has carry it instead."""
        own = self.inner.exempt(parameter, dense)
        if own is dense:
            return dense
        return self if own is self.inner else self.around(own)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the most bytes of the inner one's payload, headers apart."""
        return self.inner.payload_bytes(shape)
