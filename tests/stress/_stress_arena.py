"""Where schedules of `stress` are run: ranks that are forked, or on hosts of a testbed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _ranks import Group, Process, Zygote
from _ranks_mpi import MpiGroup
from _ranks_mpi import missing as missing_mpi
from _stress_invariants import Invariants
from _stress_ranks import enter_network
from _stress_schedules import KINDS, TRANSPORTS, Schedule
from _stress_trial import Trial

from compressa.testbed import Testbed, open_testbed

DEADLINE_S = 4.0
SLACK_S = 1.0


class NetworkGroup(Group):
    """Ranks on hosts of a testbed, one on each.

    Args:
        zygote: What they are forked from.
        size: Number of ranks.
        bed: At least so many hosts.
        pids: A process on each host.
    """

    def __init__(self, zygote: Zygote, size: int, bed: Testbed, pids: list[int]) -> None:
        self.size, self.jobs, self.suspect = size, 0, False
        self.processes = [Process(zygote, rank) for rank in range(size)]
        hosts = bed.hosts
        namespaces = [{"pid": pids[r], "interface": hosts[r].interface} for r in range(size)]
        self.run(enter_network, per_rank=namespaces)
        self._meet(hosts[0].address)


class Arena:
    """Where schedules are run: what ranks are forked from, and hosts on links.

    Args:
        deadline_s: The exchanges' deadline.
        slack_s: How much later every survivor must know.
        zygote: What ranks are forked from; one of its own if not given.
        rate: Of the hosts' links.
    """

    def __init__(
        self,
        deadline_s: float = DEADLINE_S,
        slack_s: float = SLACK_S,
        zygote: Zygote | None = None,
        rate: str = "1gbit",
    ) -> None:
        self.deadline_s, self.slack_s, self._rate = deadline_s, slack_s, rate
        self._stack = ExitStack()
        self._zygote = zygote or Zygote()
        if zygote is None:
            self._stack.callback(self._zygote.close)
        self._bed: Testbed | None = None
        self._pids: list[int] = []

    def close(self) -> None:
        """End everything."""
        self._stack.close()

    def run(self, schedule: Schedule) -> float:
        """Run a schedule; return after how many seconds the last survivor knew of a fault.

        Raises:
            InvariantError: Something does not hold that must.
        """
        with self._group(schedule) as group, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            must = Invariants(schedule, folder, self.deadline_s, self.slack_s)
            trial = Trial(schedule, group, folder, self.deadline_s, must)
            trial.run()
            self._mend()
            trial.leave()
        return must.slowest_s

    def network_group(self, size: int) -> NetworkGroup:
        """Return ranks on hosts of their own, which the caller ends."""
        bed = self._hosts()
        return NetworkGroup(self._zygote, size, bed, self._pids)

    @contextmanager
    def _group(self, schedule: Schedule) -> Iterator[Group]:
        group: Group
        if schedule.transport == "mpi":
            group = MpiGroup(self._zygote, schedule.size, faults=True)
        elif schedule.network:
            group = self.network_group(schedule.size)
        else:
            group = Group(self._zygote, schedule.size)
        try:
            yield group
        finally:
            group.end()
            self._mend()

    def _hosts(self) -> Testbed:
        if self._bed is None:
            self._bed = open_testbed(4, self._rate, "netns", self_check=False)
            self._stack.callback(self._bed.close)
            holders = [self._bed.spawn(i, ["sleep", "infinity"]) for i in range(4)]
            self._pids = [holder.pid for holder in holders]
            time.sleep(0.5)  # until they are where they belong
        return self._bed

    def _mend(self) -> None:
        """Take all links up."""
        for number, host in enumerate(self._bed.hosts if self._bed else ()):
            assert self._bed is not None
            up = ["ip", "link", "set", "dev", host.interface, "up"]
            assert self._bed.spawn(number, up).wait(10) == 0


def transports_here() -> list[str]:
    """Name the transports that can be used here."""
    return [name for name in TRANSPORTS if name != "mpi" or not missing_mpi()]


def kinds_here() -> list[str]:
    """Name the kinds of faults that can be inflicted here."""
    networks = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter")))
    return [kind for kind in KINDS if kind not in ("link", "outage") or networks]
