"""Opening: from a process group to a running engine, which all its ranks have agreed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from compressa.compressor import Compressor
from compressa.config import Config
from compressa.engine import link_file, startup
from compressa.engine.control import Control
from compressa.engine.engine import Engine
from compressa.engine.lanes import Lane
from compressa.errors import BackendUnavailable, CompressaError, ConfigError
from compressa.parameters import ParameterInfo
from compressa.transports.alone import Alone
from compressa.transports.mpi_process import left_behind

_CLOSE_S = 0.5  # a failure must be told in time; threads that wait for the lost end by themselves


def open_engine(
    config: Config,
    compressors: Mapping[str, Compressor],
    parameters: Sequence[ParameterInfo],
    lane: Lane,
    ranks: dist.ProcessGroup,
    failure: CompressaError | None = None,
) -> tuple[Engine, list[dist.ProcessGroup]]:
    """Open the channels, compare the ranks, and start the engine; all ranks must do so together.

    Args:
        config: Settings.
        compressors: By parameter name.
        parameters: The model's.
        lane: Where gradients are.
        ranks: Who takes part.
        failure: Why this rank can not, which the others are told.

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
        return Engine(parameters, compressors, config, Alone(), lane=lane), []
    groups: list[dist.ProcessGroup] = []
    try:
        return _start(config, compressors, failure, parameters, lane, ranks, groups), groups
    except BaseException as error:
        alike = isinstance(error, ConfigError | BackendUnavailable)  # on every rank
        if config.exchange.transport == "mpi" and not alike:
            left_behind()  # whoever is lost will not come to MPI's end either
        startup.release_groups(groups)
        raise


def _start(
    config: Config,
    compressors: Mapping[str, Compressor],
    failure: CompressaError | None,
    parameters: Sequence[ParameterInfo],
    lane: Lane,
    ranks: dist.ProcessGroup,
    groups: list[dist.ProcessGroup],
) -> Engine:
    """Open the channels, compare the ranks, and start the engine; add to `groups` what is made."""
    groups.append(startup.new_group(config, ranks, "gloo"))
    control = startup.open_control(config, groups[0])
    try:
        kind, failure = _transport(config, ranks, lane, failure)
        link, failure = _link(config, kind, control.rank, failure)
        text = str(failure) if failure is not None else None
        _agree(control, startup.digest(config, text, parameters, kind), failure, config, link)
        groups.append(startup.new_group(config, ranks, "nccl" if kind == "nccl" else "gloo"))
        failed = _Late()
        transport = startup.open_transport(
            config, groups[1], control, parameters, failed, kind, lane
        )
        engine = Engine(parameters, compressors, config, transport, control, lane)
        failed.connect(engine.fail)
        return engine
    except BaseException:
        control.close(_CLOSE_S)
        raise


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
        startup.agree(control, own, config.exchange.deadline_s, link)
    except CompressaError:
        if failure is None:
            raise
    if failure is not None:
        raise failure


class _Late:
    """Passes a transport's failure on to an engine that is made after it."""

    def __init__(self) -> None:
        self._error: CompressaError | None = None
        self._target: Any = None

    def __call__(self, error: CompressaError) -> None:
        self._error = error
        if self._target is not None:
            self._target(error)

    def connect(self, target: Any) -> None:
        self._target = target
        if self._error is not None:
            target(self._error)
