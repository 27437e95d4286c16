"""Hooks: how training code reaches the engine."""

from compressa.hooks.handle import Handle
from compressa.hooks.register import register_comm_hook
from compressa.hooks.replicas import broadcast

__all__ = ["Handle", "broadcast", "register_comm_hook"]
