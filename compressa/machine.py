"""Facts about this machine and installation, for the header of a measurement."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("compressa", "torch", "numpy", "numba")


@dataclass(frozen=True)
class Machine:
    """Where and when something is measured.

    Attributes:
        cpu: Its model.
        cores: How many the system has.
        memory_bytes: Physical memory.
        system: Operating system and architecture.
        versions: Of Python and of the packages that times depend on.
        timestamp: When, in UTC, to the second.
    """

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    versions: dict[str, str]
    timestamp: datetime


def this_machine() -> Machine:
    """Return what is true of this process's machine and installation now."""
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_bytes=memory_bytes(),
        system=f"{platform.system()} {platform.machine()}",
        versions={"python": platform.python_version(), **{p: version(p) for p in _PACKAGES}},
        timestamp=now(),
    )


def now() -> datetime:
    """Return this moment, in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


def memory_bytes() -> int:
    """Return the size of physical memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
