"""What all strategies share whose ranks train by themselves: opening, and which tensors count."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from compressa.config import Config
from compressa.errors import TransportError
from compressa.hooks import Handle, broadcast
from compressa.hooks.opening import open_handle
from compressa.strategies.base import Training
from compressa.strategies.refusals import check_local


def open_local(
    training: Training,
    *,
    check: Callable[[], None] = lambda: None,
    doubles: bool = False,
    fragments: Mapping[str, int] | None = None,
    exact: Mapping[str, int] | None = None,
) -> Handle:
    """Open an engine for a model whose tensors are rank 0's on all ranks then. Collective.

    Args:
        training: What is trained; its configuration names the strategy.
        check: Raises a CompressaError if this rank can not take part after all.
        doubles: Whether parameters may be of float64.
        fragments: As `open_handle` takes it.
        exact: As `open_handle` takes it.

    Returns:
        Open for all trained parameters; the caller closes it.

    Raises:
        CompressaError: As `compressa.attach`; on every rank.
    """
    strategy = training.config.strategy
    assert strategy is not None, "the configuration names one"

    def check_all(_: object) -> None:
        check_local(training, doubles=doubles)
        check()

    handle = open_handle(
        training.caller,
        training.config,
        training.model,
        training.group,
        strategies=[strategy.name],
        fragments=fragments,
        exact=exact,
        sparse=True,
        check=check_all,
    )
    with handle.closed_on_error():
        broadcast(training.model, group=training.group, config=training.config)
    return handle


def statistics_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that ranks average or share, such as running statistics, by name."""
    named = model.named_buffers()
    return {name: b for name, b in named if b.is_floating_point() and b.numel()}


def average(
    tensors: Mapping[str, torch.Tensor],
    config: Config,
    group: dist.ProcessGroup,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Have all ranks hold the mean of theirs, uncompressed. Collective.

    Args:
        tensors: By name, real; overwritten, with the same bits on all ranks. Those of 16 bits are
            averaged in float32, where their sum has room.
        config: Says how values are exchanged.
        group: Who takes part.
        check: Raises who is lost, where that is known otherwise.

    Raises:
        PeerLost: A rank is lost; the same error on all ranks.
        TransportError: They could not meet otherwise.
    """
    check()
    try:
        plain = Config(exchange=config.exchange)
        wide = {name: x.float() if x.itemsize < 4 else x for name, x in tensors.items()}
        with open_handle("strategy.sync", plain, wide, group) as mean:
            mean.wait([mean.submit(wide)], "a mean")
        for name, x in tensors.items():
            x.copy_(wide[name])
    except TransportError:
        check()
        raise
