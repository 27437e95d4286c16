"""Opening: all ranks agree on what they train, how, and from which values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from compressa.config import Config, Source
from compressa.errors import CompressaError
from compressa.hooks import Handle, broadcast
from compressa.hooks.opening import open_handle
from compressa.optim.configuration import Wanted, configured
from compressa.optim.parts import like_exchanged
from compressa.optim.refusals import check_configuration, check_parameters

Groups = Sequence[dict[str, Any]]


def open_optimizer(
    caller: str,
    groups: Groups,
    trained: Mapping[str, torch.Tensor],
    fault: Callable[[Mapping[str, Any]], str],
    ranks: dist.ProcessGroup,
    source: Source | None,
    wanted: Wanted,
) -> Handle:
    """Open an engine for parameters, which are rank 0's on all ranks then. Collective.

    Args:
        caller: The optimizer, which errors name.
        groups: Its parameter groups.
        trained: Parameters that it trains, by name.
        fault: Says what is wrong about a group's settings; or nothing.
        ranks: Who takes part.
        source: The user's configuration, or None.
        wanted: What the optimizer asks of the engine.

    Raises:
        CompressaError: As `compressa.optim.CompressedOptimizer`.
    """
    tensors = {name: like_exchanged(p) for name, p in trained.items()}
    failure: CompressaError | None = None
    config = Config()
    try:
        config = configured(source, wanted)
    except CompressaError as error:
        failure = error

    def check(config: Config) -> None:
        if failure is not None:
            raise failure
        check_parameters(caller, groups, trained, fault)
        check_configuration(caller, config)
        wanted.check(config)

    handle = open_handle(caller, config, tensors, ranks, check=check)
    with handle.closed_on_error():
        handle.engine.session.agree(_described(groups, trained), caller)
        named = {name: p.detach() for name, p in trained.items()}
        broadcast(named, group=ranks, config=handle.config)
    return handle


class Replicas:
    """What a handle compares between ranks, as if it were a model.

    Args:
        named: Parameters by name.
        group: Who has them.
    """

    def __init__(self, named: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> None:
        self._named = named
        self.process_group = group

    @property
    def module(self) -> Replicas:
        """What has the parameters."""
        return self

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All that are trained."""
        yield from self._named.items()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """None: an optimizer knows no buffers."""
        yield from ()

    def parameters(self) -> Iterator[torch.Tensor]:
        """All that are trained."""
        yield from self._named.values()


def _described(groups: Groups, trained: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return what all ranks must have set alike, as plain values."""
    names = {id(p): name for name, p in trained.items()}
    found = {}
    for number, group in enumerate(groups):
        plain = {k: str(v) for k, v in group.items() if k not in ("params", "param_names")}
        params = [names.get(id(p)) for p in group["params"]]
        found[f"group {number}"] = {**plain, "params": params}
    return found
