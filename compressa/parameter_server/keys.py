"""Keys: what has which name and shape, and which server sums which part of it.

Every key with enough bytes is cut into nearly equal parts, one for each server, on the blocks of
its compressor; the largest part goes to the server that has least so far. So all servers share
each large key, whose push then has all their ports, and small keys fill up what is uneven. The
servers' payload bytes differ by no more than the largest part of a key that not all of them
share, or by a block.

A server's part of a large key is cut once more, into shards of `SHARD_BYTES` of payload or more: so
while one of them is pushed, the one before it is summed, and the one before that is on its way
back. With S of them a key takes (S+1)/S of its way to the server, where it took twice that way.
Where every worker is a server as well, pushes and answers fill ports both ways without that.

All of it is a pure function of the keys, the configuration and who works and serves.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from compressa.compressor import Compressor, Granularity
from compressa.errors import ConfigError
from compressa.parameter_server.coding import Coding
from compressa.parameters import ParameterInfo, Segment

SHARD_BYTES, MOST_SHARDS = 64 << 10, 16
"""Payload of a shard, at least; and how many one server has of a key, at most."""


@dataclass(frozen=True)
class Shard:
    """A run of one key's values, summed by one server.

    Attributes:
        number: Index among all shards: by key, then by first element.
        key: Number of the key.
        server: Number of the server.
        segment: The values.
        index: Among the shards that the same server has of the key.
    """

    number: int
    key: int
    server: int
    segment: Segment
    index: int = 0


@dataclass(frozen=True)
class KeyTable:
    """All keys, in the order of their urgency.

    Attributes:
        parameters: The keys, as what a configuration's rules match.
        codings: What compresses each.
        shards: All parts of all keys.
        numbers: The number of each key, by name.
        by_key: Each key's shards.
    """

    parameters: tuple[ParameterInfo, ...]
    codings: tuple[Coding, ...]
    shards: tuple[Shard, ...]
    numbers: dict[str, int] = field(init=False)
    by_key: tuple[tuple[Shard, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        numbers = {parameter.name: i for i, parameter in enumerate(self.parameters)}
        groups = {i: tuple(g) for i, g in itertools.groupby(self.shards, lambda s: s.key)}
        object.__setattr__(self, "numbers", numbers)
        object.__setattr__(self, "by_key", tuple(groups[i] for i in range(len(self.parameters))))

    def served_by(self, server: int) -> list[Shard]:
        """Return the shards of one server."""
        return [shard for shard in self.shards if shard.server == server]

    def keys_of(self, server: int) -> frozenset[int]:
        """Return the numbers of the keys that a server has something of."""
        return frozenset(shard.key for shard in self.served_by(server))

    @property
    def elems(self) -> int:
        """Values of all keys together."""
        return sum(parameter.elems for parameter in self.parameters)


def describe(keys: Mapping[str, Sequence[int] | torch.Tensor]) -> tuple[ParameterInfo, ...]:
    """Return keys as parameters.

    Args:
        keys: Shapes, or tensors that have them, by name.

    Raises:
        ConfigError: There is none, one is empty, or a tensor is not of float32 on the CPU.
    """
    if not keys:
        raise ConfigError("keys: there is none; give {name: shape or tensor}, at least one")
    return tuple(_described(i, name, what) for i, (name, what) in enumerate(keys.items()))


def _described(index: int, name: str, what: Sequence[int] | torch.Tensor) -> ParameterInfo:
    if isinstance(what, torch.Tensor):
        if what.dtype is not torch.float32 or what.device.type != "cpu":
            raise ConfigError(
                f"key {name!r} is of {what.dtype} on {what.device}; a parameter server takes "
                "float32 on the CPU: convert with .float().cpu(), and compress with fp16 or bf16"
            )
        what = what.shape
    info = ParameterInfo(index, name, tuple(what))
    if info.elems <= 0 or min(info.shape, default=1) < 0:
        raise ConfigError(f"key {name!r} of shape {info.shape} has no elements; leave it out")
    return info


def shard_keys(
    parameters: Sequence[ParameterInfo],
    compressors: Sequence[Compressor],
    servers: int,
    least_bytes: int,
    most_shards: int = MOST_SHARDS,
) -> tuple[Shard, ...]:
    """Give every part of every key to a server.

    Args:
        parameters: The keys.
        compressors: What compresses each, resolved for it.
        servers: Number of servers.
        least_bytes: A key is cut into fewer parts, if they would have fewer bytes of payload.
        most_shards: That one server has of a key.
    """
    loads = [0] * servers
    owned: list[tuple[int, int, Segment, int]] = []
    for key, (parameter, compressor) in enumerate(zip(parameters, compressors, strict=True)):
        whole = Segment(parameter, 0, parameter.elems)
        parts = _cut(whole, compressor, servers, least_bytes)
        sizes = {part: compressor.payload_bytes(_shape(part)) for part in parts}
        largest_first = sorted(parts, key=lambda part: -sizes[part])
        idlest_first = sorted(range(servers), key=loads.__getitem__)
        taken = dict(zip(largest_first, idlest_first, strict=False))
        for part in parts:
            loads[taken[part]] += sizes[part]
            shards = _cut(part, compressor, most_shards, SHARD_BYTES)
            owned += [(key, taken[part], shard, index) for index, shard in enumerate(shards)]
    return tuple(Shard(i, *shard) for i, shard in enumerate(owned))


def _cut(whole: Segment, compressor: Compressor, most: int, least_bytes: int) -> list[Segment]:
    """Cut a segment on blocks into at most so many parts, which are equal to within a block."""
    if compressor.granularity in (Granularity.PARAMETER, Granularity.MATRIX):
        return [whole]
    block = compressor.block_elems
    blocks = -(-whole.elems // block)
    worth = compressor.payload_bytes(_shape(whole)) // max(least_bytes, 1)
    parts = max(1, min(most, blocks, worth))
    edges = [min(blocks * i // parts * block, whole.elems) for i in range(parts + 1)]
    return [whole.part(start, stop) for start, stop in itertools.pairwise(edges)]


def _shape(part: Segment) -> tuple[int, ...]:
    whole = part.elems == part.parameter.elems
    return part.parameter.shape if whole else (part.elems,)
