"""Packing: parameters of one compressor as one key of a parameter server, so messages are few."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from compressa.aggregators.base import Merge, State
from compressa.compressor import Granularity
from compressa.config import Config, assign, parameter_infos
from compressa.engine.session import Session
from compressa.errors import StateError
from compressa.overlap.opening import trained
from compressa.parameter_server.coding import Coding, coding_of
from compressa.parameters import ParameterInfo, as_real
from compressa.strategies.local import statistics_of

_DIGITS = "values"


@dataclass(frozen=True)
class Packed:
    """Parameters that go together.

    Attributes:
        info: The key; its name is made of theirs.
        coding: What compresses it.
        names: Of the parameters, in their order.
    """

    info: ParameterInfo
    coding: Coding
    names: tuple[str, ...]


def pack(config: Config, model: nn.Module) -> list[Packed]:
    """Return the keys of what a model's ranks share, in the order of the first of each.

    Parameters of equal compressors share a key, unless statistics span each or its shape matters.
    The last one is of all buffers such as running statistics, if there are any: never compressed.

    Args:
        config: Says which compressor each parameter has.
        model: The model.

    Raises:
        ConfigError: A server can not add up what a compressor sends.
    """
    infos = [p for p in parameter_infos(model) if p.elems]
    # Constants such as a mask of infinities differ on no rank, and have no differences.
    statistics = {n: b for n, b in statistics_of(model).items() if bool(b.isfinite().all())}
    if statistics:
        elems = sum(buffer.numel() for buffer in statistics.values())
        infos.append(ParameterInfo(len(infos), "buffers", (elems,), exact=True))
    assigned = assign(config, infos)
    groups: dict[object, list[tuple[ParameterInfo, Coding]]] = {}
    for info in infos:
        coding = coding_of(assigned[info.name], info)
        whole = coding.compressor.granularity in (Granularity.PARAMETER, Granularity.MATRIX)
        alone = whole or info.exact
        groups.setdefault(info.name if alone else coding, []).append((info, coding))
    keys = [_packed(number, members) for number, members in enumerate(groups.values())]
    return [replace(key, names=tuple(statistics)) if key.info.exact else key for key in keys]


def _packed(number: int, members: Sequence[tuple[ParameterInfo, Coding]]) -> Packed:
    (first, coding), names = members[0], tuple(info.name for info, _ in members)
    if len(members) == 1:
        return Packed(replace(first, index=number), coding, names)
    name, elems = f"{first.name}, {len(names) - 1} more", sum(info.elems for info, _ in members)
    return Packed(ParameterInfo(number, name, (elems,)), coding, names)


class FlatCopies:
    """What a model's ranks share, as the vectors of keys, float32, 1-D.

    Of parameters of 16 bits, vectors know more digits: only what training changes in them is taken.

    Args:
        model: The model, on the CPU.
        keys: From `pack`.

    Attributes:
        parameters: By name, the memory of each that is trained, real.
        vectors: By key.
        shaped: The same memory, in the shapes of the keys.
    """

    def __init__(self, model: nn.Module, keys: Iterable[Packed]) -> None:
        self.parameters: Mapping[str, torch.Tensor] = {
            name: as_real(parameter.detach()) for name, parameter in trained(model).items()
        }
        self._keys, self._model = list(keys), model
        self.vectors = [torch.empty(key.info.elems) for key in self._keys]
        self.shaped = [
            vector.view(key.info.shape)
            for key, vector in zip(self._keys, self.vectors, strict=True)
        ]
        known = {**self.parameters, **statistics_of(model)}
        self._split = {
            key.info.name: vector.split([known[name].numel() for name in key.names])
            for key, vector in zip(self._keys, self.vectors, strict=True)
        }
        self._seen: dict[str, torch.Tensor] = {}
        self._digits: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.take()

    def take(self) -> None:
        """Copy parameters to vectors."""
        for name, parameter, part in self._parts():
            part.copy_(parameter.reshape(-1))
            self._seen[name] = part.clone() if parameter.itemsize < part.itemsize else part

    def gather(self) -> None:
        """Do to vectors what was done to parameters since they were the same."""
        for name, parameter, part in self._parts():
            seen = self._seen[name]
            if seen is part:
                part.copy_(parameter.reshape(-1))
            else:
                now = parameter.reshape(-1).float()
                part.add_(now - seen)
                seen.copy_(now)

    def keep(self, state: State) -> None:
        """Have a state keep, for a checkpoint, the digits that parameters of 16 bits do not have.

        Args:
            state: Of this rank; all ranks hold the same in it when it is written or read.
        """
        self._digits = []
        for key, vector in zip(self._keys, self.vectors, strict=True):
            if any(self._seen[name] is not part for name, _, part in self._parts_of(key)):
                kept = state.vector(_DIGITS, key.info, key.info.elems, Merge.FIRST)
                state.kept.add(f"{_DIGITS}/{key.info.name}")
                self._digits.append((kept, vector))

    def write_digits(self) -> None:
        """Bring what `keep` has promised up to date."""
        for kept, vector in self._digits:
            kept.copy_(vector)

    def take_digits(self) -> None:
        """Go on from the digits that were read, where they are those of the parameters."""
        for kept, vector in self._digits:
            vector.copy_(kept)
        for name, parameter, part in self._parts():
            if self._seen[name] is not part:
                now = parameter.reshape(-1)
                part.copy_(torch.where(part.to(now.dtype) == now, part, now.float()))

    def scatter(self) -> None:
        """Copy vectors to parameters."""
        for name, parameter, part in self._parts():
            parameter.copy_(part.view(parameter.shape))
            if self._seen[name] is not part:
                self._seen[name].copy_(parameter.reshape(-1))

    def _parts(self) -> Iterable[tuple[str, torch.Tensor, torch.Tensor]]:
        for key in self._keys:
            yield from self._parts_of(key)

    def _parts_of(self, key: Packed) -> Iterable[tuple[str, torch.Tensor, torch.Tensor]]:
        known = statistics_of(self._model) if key.info.exact else self.parameters
        owners = [known[name] for name in key.names]
        return zip(key.names, owners, self._split[key.info.name], strict=True)


def check_alike(session: Session, vectors: Iterable[torch.Tensor]) -> None:
    """Refuse to go on from values that are not the same on all ranks. Collective.

    Args:
        session: With the other ranks.
        vectors: On the CPU, contiguous; compared bit by bit, in this order.

    Raises:
        StateError: They differ; on every rank.
    """
    digest = hashlib.sha256()
    for vector in vectors:
        digest.update(vector.numpy().data)
    if len(set(session.all_gather(digest.digest(), "strategy.load, digests"))) > 1:
        raise StateError(
            "strategy.load: ranks hold different parameters or buffers; load the model's state on "
            "all of them first"
        )
