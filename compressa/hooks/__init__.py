"""Hooks: how training code reaches the engine."""

from compressa.hooks.handle import Handle
from compressa.hooks.hook_pair import comm_hook
from compressa.hooks.opening import open_engine
from compressa.hooks.register import register_comm_hook
from compressa.hooks.replicas import broadcast

__all__ = ["Handle", "broadcast", "comm_hook", "open_engine", "register_comm_hook"]
