"""Cores: how many threads a rank may have, and that nothing adds to them.

Ranks on one machine share its cores. Each says at start-up where it runs, so that all know with
whom they share; and what is not said otherwise is

    threads = cores that the rank may use / ranks that may use one of them
"""

from __future__ import annotations

import math
import os
import platform
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

_MOST_THREADS = 8  # fewer than that fill the memory bus, which is what kernels wait for
_CGROUPS = Path("/sys/fs/cgroup")
_SETTING = threading.Lock()  # of torch's number of threads


@dataclass(frozen=True)
class Host:
    """Where a rank runs.

    Attributes:
        machine: The same for ranks that run under one kernel, in whatever containers.
        cores: Numbers of the cores that it may run on.
        usable: How many of them its control groups let it fill.
        network: The same for ranks that reach each other without a network.
    """

    machine: str
    cores: frozenset[int]
    usable: int
    network: str = ""

    def message(self) -> dict[str, Any]:
        """Return it as JSON takes it, for `of` on another rank."""
        return {**asdict(self), "cores": sorted(self.cores)}

    @staticmethod
    def of(message: dict[str, Any]) -> Host:
        """Return what `message` was made of.

        Raises:
            KeyError: It is something else.
        """
        cores = frozenset(message["cores"])
        return Host(message["machine"], cores, message["usable"], message["network"])


def own_host() -> Host:
    """Return where this process runs: its cores, control groups and network namespace, as now."""
    cores = _own_cores()
    usable = max(1, math.floor(min(len(cores), *_quotas())))
    machine = _text(Path("/proc/sys/kernel/random/boot_id")) or platform.node()
    return Host(machine, cores, usable, f"{machine}/{_namespace()}")


def default_threads(rank: int, hosts: Sequence[Host], launched: int = 1) -> int:
    """Return the number of threads for a rank that has been given none.

    Example:
        >>> host = Host("one machine", frozenset(range(8)), 8)
        >>> default_threads(0, [host, host])
        4

    Args:
        rank: The rank.
        hosts: Where each rank of its group runs.
        launched: Ranks that were launched on its machine; those that are not in the group are
            taken to run on the same cores.
    """
    return max(1, min(_share(rank, hosts, launched), _MOST_THREADS))


def has_core(rank: int, hosts: Sequence[Host], launched: int = 1) -> bool:
    """Return whether a rank has a core that no other needs, to look for messages without sleep.

    Args:
        rank: As for `default_threads`; likewise the others.
        hosts: See rank.
        launched: See rank.
    """
    return _share(rank, hosts, launched) >= 1


def _share(rank: int, hosts: Sequence[Host], launched: int) -> int:
    """A rank's share of its cores; nothing if there are fewer than ranks."""
    own = hosts[rank]
    local = [host for host in hosts if host.machine == own.machine]
    sharing = sum(not own.cores.isdisjoint(host.cores) for host in local)
    sharing += max(0, launched - len(local))
    return own.usable // sharing


def launched_here() -> int:
    """Return how many ranks a launcher such as torchrun says it started on this machine.

    1 where LOCAL_WORLD_SIZE says nothing.
    """
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(count) if count.isdecimal() else 1


def work_alone() -> None:
    """Have torch's operators use this thread only, when this thread calls them.

    Else every worker would have threads of torch's own. Other threads keep the user's setting:
    torch sets it for the current thread and for those to come, so another thread puts that back.
    """
    with _SETTING:  # else the next thread would take the 1 for the user's setting
        usual = torch.get_num_threads()  # which also settles this thread's own number
        torch.set_num_threads(1)
        restore = threading.Thread(target=torch.set_num_threads, args=(usual,))
        restore.start()
        restore.join()


def _namespace() -> str:
    """Name this process's network namespace, which is a host of its own to the network."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def _own_cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _quotas() -> Iterator[float]:
    """Yield the cores' worth of time that this process's control groups grant; infinity first."""
    yield math.inf
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            root = _CGROUPS / ("cpu" if controllers else "")
            folder = root / path.lstrip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(root):
                    yield _quota(group)


def _quota(folder: Path) -> float:
    """Return a control group's own limit, in cores."""
    words = _text(folder / "cpu.max").split() or [
        _text(folder / "cpu.cfs_quota_us"),
        _text(folder / "cpu.cfs_period_us"),
    ]
    quota, period = words[0], words[-1]
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return math.inf  # "max", -1, or nothing there
    return int(quota) / int(period)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
