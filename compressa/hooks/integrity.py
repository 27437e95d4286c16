"""Integrity: replicas are compared every so many steps, and a difference is told or repaired.

When all ranks hold the same, and nothing changes it meanwhile, follows from what a step is:

- *Parameters*, from the first gradient of a backward pass to the optimizer's step. They are read
  while backward and its communication run.
- *Buffers*, from the moment in which rank 0's were brought to all until the forward pass, which
  writes running statistics of each rank's own. They are copied in between. Without
  `broadcast_buffers` they are each rank's own, and not compared.
- *State of compressors* that is the same on all ranks (`Merge.FIRST`), from the last unit of a step
  to the first of the next. It is read before that one starts.

What ranks found is told at the end of backward, and looked at when the next forward pass begins.
"""

from __future__ import annotations

import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compressa.config import Config
from compressa.engine.engine import Engine
from compressa.engine.replicas.integrity import Check, Difference
from compressa.errors import StateError
from compressa.hooks.replicas import broadcast, fault_of
from compressa.parameters import plain_name

_BUFFER = "buffer"
_NEVER = -1
_PART_S = 5.0


class Integrity:
    """Compares the replicas of one model; does nothing without one, or in a world of one.

    Args:
        engine: Has the control channel and the state of compressors.
        config: Says how often, and what becomes of a difference.
        model: Has `module` and `process_group`; None if there is none.
    """

    def __init__(
        self,
        engine: Engine,
        config: Config,
        model: weakref.ref[Any] | None,
    ) -> None:
        self._engine = engine
        self._config = config
        self._model: Any = model
        self._check: Check | None = None
        control = engine.session.control
        if model is not None and control is not None and config.integrity.every:
            self._check = Check(control, engine.device_stream.device, config.exchange.deadline_s)
        self._begun = _NEVER  # the step of the check under way
        self._first = (_NEVER, 0)
        self._kept: dict[str, torch.Tensor] = {}

    def due(self, step: int) -> bool:
        """Whether replicas are compared in a step."""
        return self._check is not None and step % self._config.integrity.every == 0

    def forward(self, step: int) -> None:
        """Note that a forward pass begins, before which nobody changes parameters for one rank."""
        if self.due(step) and self._first[0] != step:
            self._first = (step, self._writes())

    def keep(self, step: int, buffers: Mapping[str, torch.Tensor]) -> None:
        """Copy buffers that were just brought to all ranks.

        Args:
            step: The step under way; nothing is copied unless it is `due`.
            buffers: By name, of any shape and dtype; those that no exchange can carry are left out.
        """
        if self.due(step):
            kept = {name: b.detach().clone() for name, b in buffers.items() if not fault_of(b)}
            self._kept = _called(_BUFFER, kept)

    def begin(self, step: int) -> None:
        """Begin to read, at the first gradient of a step, before the engine has it."""
        if self._check is None or step == self._begun or not self.due(step):
            return
        self._begun = step
        kept, self._kept = self._kept, {}
        (first, writes), self._first = self._first, (_NEVER, 0)
        if first == step and writes != self._writes():
            self._say_skipped(step)
            self._check.begin({})
            return
        with self._engine.device_stream.current():
            self._check.read(_called("compressor state", self._engine.state.shared()))
        self._check.begin({**_called("parameter", self._parameters()), **kept})

    def tell(self) -> None:
        """Wait until all is read, and send checksums to the others, before the optimizer's step."""
        if self._check is not None and self._begun != _NEVER:
            self._check.tell()

    def settle(self, step: int, quiesce: Callable[[], None] | None = None) -> None:
        """Look at what the last check has found. Collective, if one is under way.

        Args:
            step: The next; if it is not the one after the check, a checkpoint was loaded since.
            quiesce: Waits until nothing changes parameters or state; None if nothing does now.

        Raises:
            StateError: Replicas differ, and are to be, or can not be repaired.
            TransportError: A rank is gone.
        """
        begun, self._begun = self._begun, _NEVER
        if self._check is None or begun == _NEVER:
            return
        if step != begun + 1:
            self._check.forget()
            return
        found = self._check.result()
        if found:
            self._act(begun, found, quiesce)

    def part(self) -> None:
        """Let go of what is under way: this rank leaves."""
        if self._check is not None:
            self._check.part(_PART_S)

    def _act(
        self, step: int, found: Sequence[Difference], quiesce: Callable[[], None] | None
    ) -> None:
        """Do what is configured about a difference."""
        wanted, text = self._config.integrity.on_mismatch, _described(step, found)
        if wanted == "raise" or (wanted == "repair" and not all(d.majority for d in found)):
            raise StateError(
                f"{text}; go on from a checkpoint of an earlier step, have a majority repair the "
                'others by integrity.on_mismatch = "repair", or, if ranks are meant to differ, set '
                "integrity.every = 0"
            )
        if wanted == "repair":
            if quiesce is not None:
                quiesce()
            self._repair(found)
            text += "; the majority's were brought to the others"
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _say_skipped(self, step: int) -> None:
        warnings.warn(
            f"replicas were not compared in step {step}: parameters were written between its first "
            "forward pass and its backward pass, as an optimizer that looks ahead does on each "
            "rank for itself; set integrity.every = 0 if that is so in every step",
            RuntimeWarning,
            stacklevel=2,
        )

    def _repair(self, found: Sequence[Difference]) -> None:
        """Bring tensors that differ from those who are right to the others."""
        tensors = {
            **_called("parameter", self._parameters()),
            **_called(_BUFFER, dict(self._module.named_buffers())),
            **_called("compressor state", self._engine.state.shared()),
        }
        by_source: defaultdict[tuple[int, ...], dict[str, torch.Tensor]] = defaultdict(dict)
        for difference in found:
            # Since it was compared, a forward pass has written each rank's own to a buffer.
            count = 1 if difference.name.startswith(_BUFFER) else None
            by_source[difference.majority[:count]][difference.name] = tensors[difference.name]
        group = self._model().process_group
        for sources, named in by_source.items():
            broadcast(named, group=group, sources=sources, config=self._config)

    @property
    def _module(self) -> torch.nn.Module:
        module: torch.nn.Module = self._model().module
        return module

    def _parameters(self) -> dict[str, torch.Tensor]:
        """All that DDP brings to all ranks, frozen ones among them."""
        ignored = getattr(self._model(), "parameters_to_ignore", ())
        named = self._module.named_parameters()
        kept = ((n, p.detach()) for n, p in named if n not in ignored and not fault_of(p))
        return {plain_name(name): p for name, p in kept}

    def _writes(self) -> int:
        """A number that grows with each write to a trained parameter."""
        return sum(p._version for p in self._module.parameters() if p.requires_grad)


def _called(kind: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{kind} {name!r}": tensor for name, tensor in tensors.items()}


def _described(step: int, found: Sequence[Difference]) -> str:
    """Say in words what differs: the first of it, and how much more."""
    first, more = found[0], len(found) - 1
    rest = f" (and of {more} more)" if more else ""
    who = _ranks(first.ranks)
    if not first.majority:
        return (
            f"step {step}: {who} hold different values of {first.name}{rest}, and no majority "
            "tells which are right"
        )
    holds = "holds" if len(first.ranks) == 1 else "hold"
    return f"step {step}: {who} {holds} other values of {first.name}{rest} than most ranks do"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
