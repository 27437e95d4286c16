"""Opening: from a process group to a session, or to an engine, that its ranks have agreed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch.distributed as dist

from compressa.compressor import Compressor
from compressa.config import Config
from compressa.engine.compilation import compile_on_all_ranks
from compressa.engine.control.control import Control
from compressa.engine.control.deferred_error import DeferredError
from compressa.engine.device_stream import DeviceStream
from compressa.engine.engine import Engine
from compressa.engine.session import Session, given_up_on_error
from compressa.engine.start import link_file, process_groups, startup
from compressa.errors import CompressaError, ConfigError
from compressa.parameters import ParameterInfo
from compressa.transports.alone import Alone
from compressa.transports.table import TRANSPORTS


def open_session(
    config: Config,
    group: dist.ProcessGroup,
    values: int | Sequence[ParameterInfo],
    threads: int | None = 1,
    *,
    device_stream: DeviceStream | None = None,
    failure: CompressaError | None = None,
    link: bool = False,
    in_stream_order: bool = False,
    caller: str = "open_session",
) -> Session:
    """Open the channels, and compare what the ranks want. Collective over a process group.

    Args:
        config: Says which transport, and how long a wait may be. All ranks' must be equal.
        group: Who takes part.
        values: What a step brings at most, as a peer may be ahead by so much: a number of float32
            values, or parameters, which must be equal on all ranks.
        threads: As `Session` takes it.
        device_stream: As `Session` takes it.
        failure: Why this rank can not take part after all, which the others are told.
        link: Whether exchanges are chosen by the file that `exchange.link` names on rank 0.
        in_stream_order: Whether exchanges go by the group itself, in the order of the threads that
            ask for them.
        caller: The function that the user called, which errors name.

    Raises:
        ConfigError: The ranks do not agree, or there is no such transport; on every rank.
        Timeout: Not all ranks open one.
        TransportError: A rank is lost.
        CompressaError: The failure that was given.
    """
    device_stream = device_stream or DeviceStream()
    opened = partial(Session, config, device_stream=device_stream, threads=threads, caller=caller)
    if group.size() == 1:
        if failure is not None:
            raise failure
        return opened(Alone(), in_stream_order=in_stream_order and device_stream.asynchronous)
    brought = [ParameterInfo(0, "values", (values,))] if isinstance(values, int) else values
    obstacle = startup.obstacle(config, group.size())
    groups: list[dist.ProcessGroup] = []
    with given_up_on_error(config, groups):
        control = startup.open_control(config, group, caller, obstacle)
        with given_up_on_error(config, groups, control, control.close):
            kind = _agree_on_transport(
                config, group, control, brought, device_stream, failure, link, in_stream_order
            )
            if not in_stream_order:
                backend = TRANSPORTS[kind].backend
                groups.append(process_groups.new_group(config, group, backend, caller))
            failed = DeferredError()
            transport = startup.open_transport(
                config,
                groups[0] if groups else group,
                control,
                brought,
                failed,
                kind,
                device_stream,
                shared=in_stream_order,
            )
            session = opened(transport, control, groups=groups, in_stream_order=in_stream_order)
            failed.connect(session.fail)
            return session


def _agree_on_transport(
    config: Config,
    group: dist.ProcessGroup,
    control: Control,
    values: Sequence[ParameterInfo],
    device_stream: DeviceStream,
    failure: CompressaError | None,
    link: bool,
    in_stream_order: bool,
) -> str:
    """Return which, when all ranks have said that they can and want the same.

    A failure of this rank is kept until the others have heard of it.
    """
    kind, offered = "", None
    try:
        kind = startup.choose_transport(config, group, device_stream.device)
        if in_stream_order and not TRANSPORTS[kind].device:
            raise ConfigError(
                f'exchange.order = "stream", but exchanges go by the transport "{kind}", which '
                'launches nothing on a GPU; use "own", or a process group of NCCL'
            )
        if link and control.rank == 0 and failure is None:
            offered = link_file.offer(config, kind)
    except CompressaError as error:
        failure = failure or error
    text = None if failure is None else str(failure)
    own = startup.digest(config, text, values, kind)
    try:
        startup.agree(control, own, config.exchange.start_wait_s, offered)
    except CompressaError:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    return kind


def start_engine(
    config: Config,
    group: dist.ProcessGroup,
    parameters: Sequence[ParameterInfo],
    compressors: Mapping[str, Compressor],
    *,
    device_stream: DeviceStream | None = None,
    failure: CompressaError | None = None,
    caller: str = "start_engine",
) -> Engine:
    """Open a session, compile what training will call, and start the engine. Collective.

    Args:
        config: Settings; all ranks' must be equal.
        group: Who takes part.
        parameters: The model's; the same on every rank.
        compressors: By parameter name.
        device_stream: Where gradients are; the CPU's if not given.
        failure: Why this rank can not, which the others are told.
        caller: The function that the user called, which an error names.

    Returns:
        The engine, which owns its session: `Engine.close` ends both.

    Raises:
        BackendUnavailable: There is not enough memory for state.
        ConfigError: The ranks differ, or one of them can not take part; on every rank.
        TransportError: A rank is lost, or does not come in time.
        CompressaError: The failure that was given.
    """
    session = open_session(
        config,
        group,
        parameters,
        None,
        device_stream=device_stream,
        failure=failure,
        link=True,
        in_stream_order=config.exchange.order == "stream",
        caller=caller,
    )
    with session.closed_on_error():
        compile_on_all_ranks(session, parameters, compressors, config)
        return Engine(session, parameters, compressors)
