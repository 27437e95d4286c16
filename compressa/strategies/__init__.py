"""Strategies: when ranks meet, and what becomes of it."""

from compressa.strategies.base import Strategy
from compressa.strategies.opening import attach

__all__ = ["Strategy", "attach"]
