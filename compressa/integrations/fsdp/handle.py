"""FSDPHandle: what `apply_to_fsdp` returns, and the pair of `comm_hook` has with FSDP1."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from compressa.engine.measuring.stats import Stats
from compressa.engine.start.link_file import AgreedLink
from compressa.errors import StateError
from compressa.hooks import saving
from compressa.hooks.handle import Handle
from compressa.integrations.fsdp.groups import Sharding
from compressa.integrations.fsdp.shards import Shards


@dataclass(frozen=True)
class FSDPStats:
    """What was measured on this rank since the start.

    Attributes:
        gradients: Of reduce-scatters. A step is a pass that reduces.
        weights: Of all-gathers; a step is one of them.
        replicas: Of all-reduces over replicas.
    """

    gradients: Stats
    weights: Stats
    replicas: Stats

    @property
    def dense_bytes(self) -> int:
        """Size of what was compressed, before that."""
        return sum(stats.dense_bytes for stats in (self.gradients, self.weights, self.replicas))

    @property
    def payload_bytes(self) -> int:
        """Size after compression, each byte counted once however often it travels."""
        return sum(stats.payload_bytes for stats in (self.gradients, self.weights, self.replicas))

    @property
    def sent_bytes(self) -> int:
        """What this rank handed to the network, with all headers."""
        return sum(stats.sent_bytes for stats in (self.gradients, self.weights, self.replicas))

    @property
    def ratio(self) -> float:
        """Dense bytes over compressed bytes; larger is better. 1 if nothing was compressed yet."""
        return self.dense_bytes / self.payload_bytes if self.payload_bytes else 1.0


_NOTHING = Stats(0, 0, 0, 0, 0, 0.0, 0.0)


class FSDPHandle:
    """Statistics, residuals and the end of what `apply_to_fsdp` has begun.

    Residuals are *rank-local*: what a rank has not sent yet. `save` and `load` are collective, and
    handle that; so does torch's distributed checkpoint, as this object is a `Stateful`, for as many
    ranks as have saved.

    Args:
        shards: Compresses within the ranks that a parameter is cut into; None if nothing does.
        replicas: Averages over replicas; None if nothing does, or this rank owns nothing.
        sharding: Of the model.
    """

    def __init__(self, shards: Shards | None, replicas: Handle | None, sharding: Sharding) -> None:
        self._shards, self._replicas = shards, replicas
        self._shard, self._n_shards = sharding.shards.rank(), sharding.shards.size()
        others = sharding.replicas
        self._replica, self._n_replicas = (others.rank(), others.size()) if others else (0, 1)
        self._at_exit = partial(_close_at_exit, weakref.ref(self), os.getpid())
        atexit.register(self._at_exit)

    def __enter__(self) -> Self:
        """Return the handle."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def stats(self) -> FSDPStats:
        """Return what was measured on this rank since the start."""
        gradients, weights = self._shards.stats() if self._shards else (_NOTHING, _NOTHING)
        return FSDPStats(gradients, weights, self._replicas.stats() if self._replicas else _NOTHING)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals and the number of the next pass, for a checkpoint.

        The keys name the rank and the number of ranks: torch's distributed checkpoint keeps every
        rank's part, and finds none for another number of ranks, for which there is `save`.

        Returns:
            The live tensors, 1-D and in the dtypes in which they are kept.
        """
        state: dict[str, Any] = {}
        if self._shards is not None:
            found = saving.state_dict(self._shards, self._shards.next_step)
            state |= {f"{self._prefix}shards/{key}": value for key, value in found.items()}
        if self._replicas is not None:
            found = self._replicas.state_dict()
            state |= {f"{self._prefix}replicas/{key}": value for key, value in found.items()}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what this rank's `state_dict` gave.

        Raises:
            StateError: It is another rank's, another model's, or of another number of ranks.
        """
        if self._shards is not None:
            part = self._part("shards", state_dict)
            self._shards.resume_at(saving.load_state_dict(self._shards, part))
        if self._replicas is not None:
            self._replicas.load_state_dict(self._part("replicas", state_dict))

    def save(self, path: str | Path) -> None:
        """Write residuals: one file per rank, and a manifest. Collective.

        Args:
            path: A folder on a file system that all ranks share.

        Raises:
            StateError: Some rank could not write; on every rank.
        """
        if self._shards is not None:
            folder = Path(path) / f"replica{self._replica}"
            saving.save(self._shards, folder, self._shards.next_step, AgreedLink())
        if self._replicas is not None:
            self._replicas.save(Path(path) / f"shard{self._shard}")

    def load(self, path: str | Path) -> None:
        """Read residuals of this model. Collective.

        Without replicas, they may be of any number of ranks: what all have not sent yet keeps its
        share of the mean. With replicas, of any number of these, if nothing is compressed between
        the shards of one.

        Raises:
            StateError: They can not be read, or are of another model, compressor, or number of
                ranks; on every rank that finds it.
        """
        if self._shards is not None:
            self._check_number(Path(path), "replica", self._n_replicas)
            folder = Path(path) / f"replica{self._replica}"
            self._shards.resume_at(saving.load(self._shards, folder)[0])
        if self._replicas is not None:
            self._check_number(Path(path), "shard", self._n_shards)
            self._replicas.load(Path(path) / f"shard{self._shard}")

    def close(self) -> None:
        """End all threads. The model can not be trained afterwards, nor evaluated if compressed."""
        atexit.unregister(self._at_exit)
        closing: list[Callable[[], None]] = [x.close for x in (self._shards, self._replicas) if x]
        for close in closing:
            close()

    @property
    def _prefix(self) -> str:
        ranks = f"{self._n_replicas}x{self._n_shards}"
        return f"of{ranks}/replica{self._replica}/shard{self._shard}/"

    def _part(self, name: str, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        prefix = f"{self._prefix}{name}/"
        found = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        if not found:
            raise StateError(
                f"this state dict has nothing for {prefix!r}: residuals are rank-local; use "
                "handle.save and handle.load to change the number of ranks"
            )
        return found

    def _check_number(self, path: Path, kind: str, number: int) -> None:
        saved = sum(1 for _ in path.glob(f"{kind}[0-9]*"))
        if saved != number:
            raise StateError(
                f"{path} has residuals of {saved} {kind}s, and there are {number} now; begin with "
                "as many, or without residuals"
            )


def _close_at_exit(reference: weakref.ref[FSDPHandle], process: int) -> None:
    handle = reference()
    if handle is not None and os.getpid() == process:  # a forked child has no threads to end
        handle.close()
