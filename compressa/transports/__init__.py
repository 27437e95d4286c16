"""Transports: who moves bytes between ranks."""

from compressa.transports.base import Done, Key, Received, Traffic, Transport

__all__ = ["Done", "Key", "Received", "Traffic", "Transport"]
