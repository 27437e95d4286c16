"""UnitRuntime: one unit's steps: its aggregator, and the memory between that and the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from compressa.aggregators.base import Request, Rounds, StepContext, World
from compressa.aggregators.single import build_aggregator
from compressa.arrays import HALVES, as_array
from compressa.collectives.base import Compute, Program
from compressa.compressor import Compressor, Wrapper
from compressa.engine.units.round_plans import Carrier
from compressa.engine.units.units import Unit
from compressa.errors import StateError
from compressa.kernels.feedback import all_finite
from compressa.parameters import Segment


class UnitRuntime:
    """Collects a unit's gradients, combines them, and delivers their mean in place.

    A gradient that is contiguous and of a dtype that the aggregator takes is worked on where it
    is. Another dtype passes through staging memory, allocated at the first step that needs it; and
    what lies in another order in memory, through a copy in row-major order.

    Args:
        unit: The unit.
        world: What its aggregator needs.

    Attributes:
        layout: The unit's segments.
        name: For people.
        compressor: The unit's.
        label: Its name, for statistics.
        names: Of the parameters that it has a part of.
        aggregator: Combines it.
        rounds: The aggregator's.
        dense_bytes: Bytes of its gradients.
        payload_bytes: Most bytes of what it contributes to a step.
    """

    def __init__(self, unit: Unit, world: World) -> None:
        self.layout, self.name = unit.layout, unit.layout.name
        self.compressor, self.label = unit.compressor, _label(unit.compressor)
        self.aggregator = build_aggregator(unit.compressor, unit.layout, world)
        self.rounds = self.aggregator.rounds
        self.names = frozenset(s.parameter.name for s in unit.layout.segments)
        self.dense_bytes = unit.layout.elems * unit.layout.dtype.itemsize
        self.payload_bytes = sum(round_.capacity_bytes for round_ in self.rounds)
        self._parts = [(s.parameter.name, s, _part_of(s)) for s in unit.layout.segments]
        self._dtypes = {self.aggregator.values_dtype}
        if self.aggregator.takes_half:
            self._dtypes.update(HALVES)
        self._largest: torch.Tensor | float = 0.0
        self._staging: dict[Segment, torch.Tensor] = {}
        self._values: list[torch.Tensor] = []
        self._sources: list[torch.Tensor] = []
        self._in_place = True

    def program(
        self,
        gradients: Mapping[str, torch.Tensor],
        context: StepContext,
        carriers: Sequence[Carrier],
        *,
        check_finite: bool,
        before: Callable[[], object] | None = None,
    ) -> Program[None]:
        """Combine one step's gradients, in place.

        Args:
            gradients: By parameter name.
            context: The step.
            carriers: Of each of the rounds; see `Sums.carrier`.
            check_finite: Whether `finite` is to be known of this step.
            before: Called on the thread that encodes, before it does.
        """
        run: Rounds

        def begin() -> Request | None:
            nonlocal run
            if before is not None:
                before()
            run = self.aggregator.run(self.collect(gradients), context)
            return next(run, None)

        def resume(answer: Any) -> Request | None:
            try:
                return run.send(answer)
            except StopIteration:
                self.deliver(gradients, check_finite)
                return None

        quick, left = self.aggregator.quick, len(carriers)
        begins = quick or (self._in_place and self.aggregator.begins_quick)
        request: Request | None = yield Compute(begin, "encode", begins)
        for carrier in carriers:
            if request is None:
                raise StateError("an aggregator asked for fewer rounds than it declares")
            answer = yield from carrier(**vars(request))
            left -= 1
            ends = not (left or check_finite) and self._in_place and self.aggregator.ends_quick
            request = yield Compute(partial(resume, answer), "decode", quick or ends)
        if request is not None:
            raise StateError("an aggregator asked for more rounds than it declares")

    def collect(self, gradients: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return each segment's values as the aggregator wants them.

        Args:
            gradients: By parameter name, of its shape; lent until `deliver` returns.

        Returns:
            By segment, 1-D and contiguous, of `aggregator.values_dtype`, or of 16 bits where it
            takes these: a view of the gradient where that can be.
        """
        self._values, self._sources, self._in_place = [], [], True
        for name, segment, part in self._parts:
            gradient = gradients[name]
            right = gradient.dtype in self._dtypes
            if gradient.is_contiguous():
                source = gradient.view(-1)
                if part is not None:
                    source = source[part]
                self._in_place &= right
            else:
                source, self._in_place = _in_order(gradient, segment), False
            self._sources.append(source)
            self._values.append(source if right else self._staged(segment, source))
        return self._values

    def deliver(self, gradients: Mapping[str, torch.Tensor], check_finite: bool) -> None:
        """Copy the mean back where it passed through staging memory, after `collect`.

        Args:
            gradients: Those of `collect`; hold the mean afterwards, in their own dtype.
            check_finite: Whether `finite` is to know of it.
        """
        if not self._in_place:
            self._return_copies(gradients)
        self._largest = _largest(self._sources) if check_finite else 0.0
        self._values, self._sources = [], []

    @property
    def finite(self) -> bool:
        """Whether all that was delivered last is finite, if that was to be checked.

        On a GPU it waits until that is known.
        """
        return all_delivered_finite([self])

    def _return_copies(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Write what was copied to where it came from."""
        parts = zip(self._parts, self._values, self._sources, strict=True)
        for (name, segment, _), value, source in parts:
            if value is not source:
                source.copy_(value)
            if not gradients[name].is_contiguous():
                _put_back(source, gradients[name], segment)

    def _staged(self, segment: Segment, source: torch.Tensor) -> torch.Tensor:
        """Return memory of a dtype that the aggregator wants, with the values of a segment."""
        if segment not in self._staging:
            dtype = self.aggregator.values_dtype
            self._staging[segment] = source.new_empty(segment.elems, dtype=dtype)
        return self._staging[segment].copy_(source)


def all_delivered_finite(units: Iterable[UnitRuntime]) -> bool:
    """Return whether each unit is `finite`; waits for a GPU once for all of them."""
    largest = [unit._largest for unit in units]
    known = [x for x in largest if not isinstance(x, torch.Tensor)]
    on_gpu = [x for x in largest if isinstance(x, torch.Tensor)]
    if on_gpu:
        known.append(torch.stack(on_gpu).amax().item())
    return all(map(math.isfinite, known))


def give_back(units: Iterable[UnitRuntime], context: StepContext) -> None:
    """Take back what units sent in a step, unless all that was delivered of it is finite.

    Such a step was skipped. See `all_delivered_finite`.

    Args:
        units: All of the step.
        context: The step.
    """
    units = list(units)
    if not all_delivered_finite(units):
        for unit in units:
            unit.aggregator.rollback(context)


def _part_of(segment: Segment) -> slice | None:
    """Return where a segment lies in its parameter; None if it is all of that."""
    whole = segment.elems == segment.parameter.elems
    return None if whole else slice(segment.start, segment.stop)


def _largest(values: list[torch.Tensor]) -> torch.Tensor | float:
    """A number that is finite if all values are: on a GPU the largest magnitude, or NaN, there."""
    if values[0].is_cuda:
        norms = torch._foreach_norm(values, math.inf)
        return norms[0] if len(norms) == 1 else torch.stack(norms).amax()
    return 0.0 if all(all_finite(as_array(x)) for x in values) else math.nan


def _in_order(gradient: torch.Tensor, segment: Segment) -> torch.Tensor:
    """Return a copy of a segment's values, which are in another order, as a vector."""
    values = gradient.new_empty(segment.elems)
    for box, low, high in _boxes(gradient, segment.start, segment.stop):
        values[low:high].view(box.shape).copy_(box)
    return values


def _put_back(values: torch.Tensor, gradient: torch.Tensor, segment: Segment) -> None:
    """Write what `_in_order` has copied to where it came from."""
    for box, low, high in _boxes(gradient, segment.start, segment.stop):
        box.copy_(values[low:high].view(box.shape))


def _boxes(x: torch.Tensor, start: int, stop: int) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Cut a range of a tensor's elements, in row-major order, into views of it.

    They are the whole rows of the first dimension, and before and after them the boxes of a part
    of a row: at most 2 d - 1 views of a tensor of d dimensions, and no list of elements.

    Yields:
        A view, and where in the range its elements begin and end.
    """
    offset = 0
    while start + offset < stop:
        box = _box(x, start + offset, stop)
        yield box, offset, offset + box.numel()
        offset += box.numel()


def _box(x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return the largest view that begins at an element, and whose elements follow each other."""
    row_elems = x.numel() // x.shape[0]
    row, inside = divmod(start, row_elems)
    rows = (stop - start) // row_elems
    if inside or not rows:
        end = min(stop - row * row_elems, row_elems)
        return _box(x[row], inside, end)
    return x[row : row + rows]


def _label(compressor: Compressor) -> str:
    """Name the algorithm, not its wrapper."""
    return _label(compressor.inner) if isinstance(compressor, Wrapper) else compressor.name
