"""The configuration: one TOML file, checked whole when it is loaded."""

from compressa.config.emit import config_toml
from compressa.config.fsdp import FSDP
from compressa.config.load import Source, load_config, recompressed
from compressa.config.mistakes import ABSENT, first_difference
from compressa.config.model import Config, config_schema
from compressa.config.roles import infer_roles, parameter_infos
from compressa.config.rules import ConfigWarning, assign, assign_weights
from compressa.config.sections import (
    DenseBelow,
    Engine,
    Exchange,
    Feedback,
    Momentum,
    Schedule,
    Trace,
    Warmup,
)
from compressa.config.settings import Match, Rule

__all__ = [
    "ABSENT",
    "FSDP",
    "Config",
    "ConfigWarning",
    "DenseBelow",
    "Engine",
    "Exchange",
    "Feedback",
    "Match",
    "Momentum",
    "Rule",
    "Schedule",
    "Source",
    "Trace",
    "Warmup",
    "assign",
    "assign_weights",
    "config_schema",
    "config_toml",
    "first_difference",
    "infer_roles",
    "load_config",
    "parameter_infos",
    "recompressed",
]
