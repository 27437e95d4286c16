"""Opening: from a process group to a running engine, which all its ranks have agreed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist

from compressa.compressor import Compressor
from compressa.config import Config
from compressa.engine import link_file, process_groups, startup
from compressa.engine.compilation import compile_together
from compressa.engine.control import Control
from compressa.engine.engine import Engine
from compressa.engine.lanes import Lane
from compressa.engine.late import Late
from compressa.errors import CompressaError
from compressa.parameters import ParameterInfo
from compressa.transports.alone import Alone
from compressa.transports.table import TRANSPORTS

_CLOSE_S = 0.5  # a failure must be told in time; threads that wait for the lost end by themselves


def open_engine(
    config: Config,
    compressors: Mapping[str, Compressor],
    parameters: Sequence[ParameterInfo],
    lane: Lane,
    ranks: dist.ProcessGroup,
    failure: CompressaError | None = None,
    *,
    caller: str = "register_comm_hook",
) -> tuple[Engine, list[dist.ProcessGroup]]:
    """Open the channels, compare the ranks, and start the engine; all ranks must do so together.

    Args:
        config: Settings.
        compressors: By parameter name.
        parameters: The model's.
        lane: Where gradients are.
        ranks: Who takes part.
        failure: Why this rank can not, which the others are told.
        caller: The function that the user called, which an error names.

    Returns:
        The engine, and the process groups that were made for it, to be released after it.

    Raises:
        ConfigError: The ranks differ, or one of them can not take part; on every rank.
        TransportError: A rank is lost, or does not come in time.
        CompressaError: The failure that was given.
    """
    if ranks.size() == 1:
        if failure is not None:
            raise failure
        compile_together(parameters, compressors, config, lane, None)
        return Engine(parameters, compressors, config, Alone(), lane=lane), []
    groups: list[dist.ProcessGroup] = []
    try:
        engine = _start(config, compressors, failure, parameters, lane, ranks, groups, caller)
        return engine, groups
    except BaseException as error:
        process_groups.give_up(config, groups, error)
        raise


def close_engine(engine: Engine, groups: list[dist.ProcessGroup]) -> None:
    """End an engine, and give back the groups that were made for it."""
    engine.close()
    process_groups.release_groups(groups)


def _start(
    config: Config,
    compressors: Mapping[str, Compressor],
    failure: CompressaError | None,
    parameters: Sequence[ParameterInfo],
    lane: Lane,
    ranks: dist.ProcessGroup,
    groups: list[dist.ProcessGroup],
    caller: str,
) -> Engine:
    """Open the channels, compare the ranks, and start the engine; add to `groups` what is made."""
    obstacle = startup.obstacle(config, ranks.size())
    groups.append(process_groups.new_group(config, ranks, "gloo", caller, obstacle))
    control = startup.open_control(config, groups[0])
    with startup.opening(control, partial(control.close, _CLOSE_S)):
        kind, failure = _transport(config, ranks, lane, failure)
        link, failure = _link(config, kind, control.rank, failure)
        text = str(failure) if failure is not None else None
        _agree(control, startup.digest(config, text, parameters, kind), failure, config, link)
        compile_together(parameters, compressors, config, lane, control)
        backend = TRANSPORTS[kind].backend
        groups.append(process_groups.new_group(config, ranks, backend, caller))
        failed = Late()
        transport = startup.open_transport(
            config, groups[1], control, parameters, failed, kind, lane
        )
        engine = Engine(parameters, compressors, config, transport, control, lane)
        failed.connect(engine.fail)
        return engine


def _transport(
    config: Config, ranks: dist.ProcessGroup, lane: Lane, failure: CompressaError | None
) -> tuple[str, CompressaError | None]:
    """Choose the transport; a failure is kept until the other ranks have heard of it."""
    try:
        return startup.choose_transport(config, ranks, lane.device), failure
    except CompressaError as error:
        return "", failure or error


def _link(
    config: Config, kind: str, rank: int, failure: CompressaError | None
) -> tuple[dict[str, Any] | None, CompressaError | None]:
    """Have rank 0 read the link's file; a failure is kept until the others have heard of it."""
    try:
        return (None if failure or rank else link_file.offer(config, kind)), failure
    except CompressaError as error:
        return None, error


def _agree(
    control: Control,
    own: dict[str, Any],
    failure: CompressaError | None,
    config: Config,
    link: dict[str, Any] | None,
) -> None:
    try:
        startup.agree(control, own, config.exchange.start_wait_s, link)
    except CompressaError:
        if failure is None:
            raise
    if failure is not None:
        raise failure
