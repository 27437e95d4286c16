"""An engine of one rank, without a process group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compressa.compressor import Compressor
from compressa.config import Config
from compressa.engine.device_stream import DeviceStream
from compressa.engine.engine import Engine
from compressa.engine.session import Session
from compressa.parameters import ParameterInfo
from compressa.transports.alone import Alone
from compressa.transports.base import Transport


def engine_over(
    parameters: Sequence[ParameterInfo],
    compressors: Mapping[str, Compressor],
    *,
    config: Config | None = None,
    transport: Transport | None = None,
    device_stream: DeviceStream | None = None,
    in_stream_order: bool = False,
) -> Engine:
    """Start an engine over a transport, in a world of one unless it is given."""
    session = Session(
        config or Config(),
        transport or Alone(),
        device_stream=device_stream,
        in_stream_order=in_stream_order,
    )
    with session.closed_on_error():
        return Engine(session, parameters, compressors)
