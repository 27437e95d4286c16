"""Hooks: how training code reaches the engine."""

from compressa.hooks.handle import Handle
from compressa.hooks.register import register_comm_hook

__all__ = ["Handle", "register_comm_hook"]
