"""Compressa: gradient compression and communication scheduling for PyTorch.

    import compressa

    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    handle = compressa.register_comm_hook(model, "compressa.toml")

Names are imported when they are first used, so that `import compressa` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compressa.cluster_spec import init_from_tf_config
    from compressa.config import Config, load_config
    from compressa.engine.measuring.stats import CompressorStats, Stats
    from compressa.errors import (
        BackendUnavailable,
        CompressaError,
        ConfigError,
        PayloadError,
        PeerLost,
        StateError,
        Timeout,
        TransportError,
    )
    from compressa.hooks import Handle, broadcast, open_engine, register_comm_hook
    from compressa.integrations.fsdp import apply_to_fsdp
    from compressa.integrations.hook_pair import comm_hook
    from compressa.integrations.pipelining import compress_edge
    from compressa.launch import init_from_mpi
    from compressa.overlap import OverlappedDataParallel
    from compressa.parameter_server import open_parameter_server
    from compressa.strategies import Strategy, attach

    __version__: str

_HOMES = {
    "BackendUnavailable": "compressa.errors",
    "CompressaError": "compressa.errors",
    "CompressorStats": "compressa.engine.measuring.stats",
    "Config": "compressa.config",
    "ConfigError": "compressa.errors",
    "Handle": "compressa.hooks",
    "OverlappedDataParallel": "compressa.overlap",
    "PayloadError": "compressa.errors",
    "PeerLost": "compressa.errors",
    "StateError": "compressa.errors",
    "Stats": "compressa.engine.measuring.stats",
    "Strategy": "compressa.strategies",
    "Timeout": "compressa.errors",
    "TransportError": "compressa.errors",
    "apply_to_fsdp": "compressa.integrations.fsdp",
    "attach": "compressa.strategies",
    "broadcast": "compressa.hooks",
    "comm_hook": "compressa.integrations.hook_pair",
    "compress_edge": "compressa.integrations.pipelining",
    "init_from_mpi": "compressa.launch",
    "init_from_tf_config": "compressa.cluster_spec",
    "load_config": "compressa.config",
    "open_engine": "compressa.hooks",
    "open_parameter_server": "compressa.parameter_server",
    "register_comm_hook": "compressa.hooks",
}

__all__ = [
    "BackendUnavailable",
    "CompressaError",
    "CompressorStats",
    "Config",
    "ConfigError",
    "Handle",
    "OverlappedDataParallel",
    "PayloadError",
    "PeerLost",
    "StateError",
    "Stats",
    "Strategy",
    "Timeout",
    "TransportError",
    "apply_to_fsdp",
    "attach",
    "broadcast",
    "comm_hook",
    "compress_edge",
    "init_from_mpi",
    "init_from_tf_config",
    "load_config",
    "open_engine",
    "open_parameter_server",
    "register_comm_hook",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("compressa")
    if name not in _HOMES:
        raise AttributeError(f"module 'compressa' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
