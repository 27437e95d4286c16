"""Compressa: gradient compression and communication scheduling for PyTorch.

    import compressa

    model = DistributedDataParallel(net)
    handle = compressa.register_comm_hook(model, "compressa.toml")
"""

from importlib.metadata import version as _version

from compressa.config import Config, load_config
from compressa.engine.stats import CompressorStats, Stats
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
from compressa.hooks import Handle, register_comm_hook

__version__ = _version("compressa")

__all__ = [
    "BackendUnavailable",
    "CompressaError",
    "CompressorStats",
    "Config",
    "ConfigError",
    "Handle",
    "PayloadError",
    "PeerLost",
    "StateError",
    "Stats",
    "Timeout",
    "TransportError",
    "load_config",
    "register_comm_hook",
]
