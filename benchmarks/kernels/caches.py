"""Caches of this machine's processor, as Linux lists them."""

from __future__ import annotations

from pathlib import Path

_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def caches_bytes() -> dict[str, int]:
    """Return what the first core sees, by name; nothing where that is not known."""
    return {_name(index): _size(index) for index in sorted(_CACHES.glob("index*"))}


def _name(index: Path) -> str:
    kind = (index / "type").read_text().strip().lower()
    level = (index / "level").read_text().strip()
    return f"L{level}" if kind == "unified" else f"L{level} {kind}"


def _size(index: Path) -> int:
    text = (index / "size").read_text().strip()
    return int(text.rstrip("KMG")) * _SUFFIXES.get(text[-1], 1)
