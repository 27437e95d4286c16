"""Allocations: how much memory a call asks for, in NumPy, torch and Python.

NumPy and Python report to `tracemalloc`; torch's operators are seen one by one, and what they
return counts if no argument holds it already. What a compiled kernel allocates inside is not
seen.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compressa.codecs.base import Codec
from compressa.compressor import Compressor
from compressa.engine.units.lockstep import Lockstep
from compressa.parameters import ParameterInfo
from compressa.testing.codec_checks import DRAW
from compressa.testing.inputs import generator
from compressa.testing.memory import require

_SHAPE = (1024, 1024)
# For what does not grow with the gradient, which has 4 MiB. NumPy's own buffers are among it: some
# 100 kB with NumPy 2.1.
_CONSTANT_BYTES = 3 << 16
_WARM_UP_STEPS = 2
_LOADING_STEPS = 4  # residuals grow, and lead a selection to code that is loaded then


class TorchAllocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what torch's operators allocate while it is entered.

    Attributes:
        total_bytes: Of all results in memory of their own.
        by_operator: The same, by the operator's name.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total_bytes = 0
        self.by_operator: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, and look at what it returns."""
        result = func(*args, **(kwargs or {}))
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)}
        for tensor in filter(_is_tensor, tree_leaves(result)):
            if _storage(tensor) not in given:
                size = tensor.untyped_storage().nbytes()
                self.total_bytes += size
                name = str(func)
                self.by_operator[name] = self.by_operator.get(name, 0) + size
        return result


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Allocations:
    """What was allocated inside `allocations()`.

    Attributes:
        numpy_bytes: Most that NumPy and Python held at a time, beyond what they did before.
        torch_bytes: All that torch's operators returned in new memory.
        operators: The operators that did.
    """

    def __init__(self) -> None:
        self.numpy_bytes = 0
        self.torch_bytes = 0
        self.operators: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.numpy_bytes + self.torch_bytes

    def __str__(self) -> str:
        torchs = f", torch {self.torch_bytes} in {', '.join(self.operators)}"
        return f"NumPy {self.numpy_bytes} bytes" + (torchs if self.torch_bytes else "")


@cache
def _warm_up() -> None:
    """Have torch import what it needs to call operators under a mode, which takes megabytes."""
    with TorchAllocations():
        torch.zeros(1).add_(1.0).eq(1.0).all()


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Watch what is allocated; the result is there when the block ends, by an error too."""
    _warm_up()
    seen, before = Allocations(), tracemalloc.is_tracing()
    if not before:
        tracemalloc.start()
    try:
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        with TorchAllocations() as torchs:
            yield seen
    finally:
        seen.numpy_bytes = tracemalloc.get_traced_memory()[1] - held
        seen.torch_bytes = torchs.total_bytes
        seen.operators = tuple(torchs.by_operator)
        if not before:
            tracemalloc.stop()


@contextmanager
def allocates_at_most(most_bytes: int, name: str, what: str) -> Iterator[None]:
    """Require that a block allocates no more, also if it ends by an error.

    Args:
        most_bytes: In NumPy, torch and Python together.
        name: Of what is checked, for the message.
        what: What the block does, for the message.

    Raises:
        AssertionError: It allocates more.
    """
    seen = Allocations()
    try:
        with allocations() as seen:
            yield
    finally:
        sentence = f"{name}: {what} allocates {seen.total_bytes} bytes ({seen})"
        require(seen.total_bytes <= most_bytes, f"{sentence}, allowed are {most_bytes}")


def check_codec_allocations(codec: Codec) -> None:
    """Once warm, neither encoding nor decoding allocates in proportion to the gradient.

    Args:
        codec: What is checked, on a float32 gradient of 4 MiB.

    Raises:
        AssertionError: A call allocates more than 192 KiB; the message says what does.
    """
    elems = _SHAPE[0] * _SHAPE[1]
    x, residual = (torch.randn(elems, generator=generator(seed)) for seed in (1, 2))
    payload, out = torch.zeros(codec.wire_bytes(elems), dtype=torch.uint8), torch.zeros(elems)
    filled = payload[: codec.encode(x, payload, DRAW)]
    ways: dict[str, Callable[[], object]] = {
        "decode": lambda: codec.decode(filled, out, DRAW),
        "decode_add": lambda: codec.decode_add(filled, out, 0.5, DRAW),
        "encode": lambda: codec.encode(x, payload, DRAW),
        "encode_feedback": lambda: codec.encode_feedback(x, residual, payload, DRAW),
    }
    for what, way in ways.items():
        way()
        with allocates_at_most(_CONSTANT_BYTES, codec.name, what):
            way()


def check_allocations(compressor: Compressor, exchange: str = "auto") -> None:
    """Once warm, a step of three ranks allocates nothing in proportion to the gradient.

    Args:
        compressor: What is checked, on a float32 gradient of 4 MiB.
        exchange: As in `compressa.aggregators.base.World`.

    Raises:
        AssertionError: A step allocates more than 192 KiB; the message says what does.
    """
    own = [{"w": torch.randn(_SHAPE, generator=generator(seed))} for seed in range(3)]
    _after(_LOADING_STEPS, own, compressor, exchange)
    ranks = _after(_WARM_UP_STEPS, own, compressor, exchange)
    with allocates_at_most(_CONSTANT_BYTES, f"{compressor.name}, {exchange}", "a step"):
        ranks.step(own)


def _after(
    steps: int, own: list[dict[str, torch.Tensor]], compressor: Compressor, exchange: str
) -> Lockstep:
    ranks = Lockstep(3, [ParameterInfo(0, "w", _SHAPE)], compressor, exchange=exchange)
    for _ in range(steps):
        ranks.step(own)
    return ranks
