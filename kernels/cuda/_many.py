"""Many: several launches of one kernel as one launch of its other form; see ``_many.cuh``.

To start a kernel takes Python and the GPU as long as a megabyte takes it. So launches of
small vectors are merged; what fills the GPU by itself has nothing to gain from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ._device import HOME, Argument, Launch, Struct, device

_BYTES = 4000  # as in _many.cuh
_SLOT_BYTES = 8
_SUFFIX = "_many"
_FILLING = 4  # blocks for each processor: half of what it holds


class Many(Struct):
    """The arguments of launches, as one parameter.

    Args:
        launches: Of one kernel; no more than `most_of` says of one.
    """

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = launches

    def filled(self, address: Callable[[Any], int]) -> npt.NDArray[Any]:
        """See `Struct.filled`."""
        rows = [_packed(launch.arguments, address) for launch in self._launches]
        each = len(rows[0]) // _SLOT_BYTES
        layout = _layout(each)
        struct = np.zeros(1, layout)
        struct["arguments"][0, : len(rows)] = np.frombuffer(b"".join(rows), np.uint64).reshape(
            len(rows), each
        )
        firsts = list(accumulate((launch.blocks for launch in self._launches), initial=0))
        struct["first_block"][0, : len(firsts)] = firsts
        struct["count"] = len(rows)
        return struct


def merged(launches: Sequence[Launch]) -> Iterator[Launch]:
    """Yield what does as some launches of one kernel do that do not depend on each other."""
    source, name, *_ = launches[0]
    filling = _FILLING * device().processors if _has_form(source) else 0
    alone = [launch for launch in launches if launch.blocks >= filling]
    others = [launch for launch in launches if launch.blocks < filling]
    yield from alone
    most = _most_of(launches[0])
    for low in range(0, len(others), most):
        some = others[low : low + most]
        if len(some) == 1:
            yield some[0]
        else:
            blocks = sum(launch.blocks for launch in some)
            yield Launch(source + _SUFFIX, name, blocks, (Many(some),))


def companion(source: str) -> str | None:
    """Return the source with a source's kernels in the other form; None if there is none."""
    other = source.removesuffix(_SUFFIX) if source.endswith(_SUFFIX) else source + _SUFFIX
    return other if (HOME / f"{other}.cu").exists() else None


@cache
def _has_form(source: str) -> bool:
    return companion(source) is not None


def _most_of(launch: Launch) -> int:
    """How many launches like this fit into one."""
    each = sum(_slots(argument) for argument in launch.arguments)
    return _most(each)


def _most(each: int) -> int:
    return _BYTES // (_SLOT_BYTES * each + 4)


def _slots(argument: Argument) -> int:
    size = argument.itemsize if isinstance(argument, np.generic) else _SLOT_BYTES
    if isinstance(argument, Struct):
        size = argument.filled(lambda array: 0).nbytes
    return -(-size // _SLOT_BYTES)


@cache
def _layout(each: int) -> np.dtype[Any]:
    """``struct Many`` of arguments in so many slots."""
    most = _most(each)
    return np.dtype(
        [
            ("arguments", np.uint64, (most, each)),
            ("first_block", np.int32, most + 1),
            ("count", np.int32),
        ],
        align=True,
    )


def _packed(arguments: Sequence[Argument], address: Callable[[Any], int]) -> bytes:
    slots = []
    for argument in arguments:
        if argument is None:
            data = b""
        elif isinstance(argument, np.generic):
            data = argument.tobytes()
        elif isinstance(argument, Struct):
            data = argument.filled(address).tobytes()
        else:
            data = np.uint64(address(argument)).tobytes()
        slots.append(data.ljust(_SLOT_BYTES * _slots(argument), b"\0"))
    return b"".join(slots)
