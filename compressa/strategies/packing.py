"""Packing: parameters of one compressor as one key of a parameter server, so messages are few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from compressa.compressor import Granularity
from compressa.config import Config, assign, parameter_infos
from compressa.overlap.opening import trained
from compressa.parameter_server.coding import Coding, coding_of
from compressa.parameters import ParameterInfo, as_real
from compressa.strategies.local import statistics_of


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

    Raises:
        ConfigError: A server can not add up what a compressor sends.
    """
    infos, statistics = [p for p in parameter_infos(model) if p.elems], statistics_of(model)
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
        self.gather()

    def gather(self) -> None:
        """Copy parameters to vectors."""
        for parameter, part in self._pairs():
            part.copy_(parameter.reshape(-1))

    def scatter(self) -> None:
        """Copy vectors to parameters."""
        for parameter, part in self._pairs():
            parameter.copy_(part.view(parameter.shape))

    def _pairs(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        for key, vector in zip(self._keys, self.vectors, strict=True):
            known = statistics_of(self._model) if key.info.exact else self.parameters
            owners = [known[name] for name in key.names]
            yield from zip(owners, vector.split([p.numel() for p in owners]), strict=True)
