"""Facts about this machine and installation, for the header of a measurement."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from compressa.bench.records import Bandwidth, Header

_PACKAGES = ("compressa", "torch", "numpy", "numba")
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def header(yardstick: Sequence[Bandwidth]) -> Header:
    """Return the header of what is measured here and now."""
    return Header(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        caches_bytes=_caches(),
        memory_bytes=memory_bytes(),
        system=f"{platform.system()} {platform.machine()}",
        versions={"python": platform.python_version(), **{p: version(p) for p in _PACKAGES}},
        yardstick=list(yardstick),
        timestamp=now(),
    )


def now() -> datetime:
    """This moment, in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


def memory_bytes() -> int:
    """Physical memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _caches() -> dict[str, int]:
    """Return the caches that the first core sees, as Linux lists them."""
    return {_cache_name(index): _size(index) for index in sorted(_CACHES.glob("index*"))}


def _cache_name(index: Path) -> str:
    kind = (index / "type").read_text().strip().lower()
    level = (index / "level").read_text().strip()
    return f"L{level}" if kind == "unified" else f"L{level} {kind}"


def _size(index: Path) -> int:
    text = (index / "size").read_text().strip()
    return int(text.rstrip("KMG")) * _SUFFIXES.get(text[-1], 1)
