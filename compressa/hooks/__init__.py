"""Hooks: how training code reaches the engine."""

from compressa.hooks.handle import Handle
from compressa.hooks.opening import open_engine
from compressa.hooks.register import register_comm_hook
from compressa.hooks.replicas import broadcast

__all__ = ["Handle", "broadcast", "open_engine", "register_comm_hook"]
