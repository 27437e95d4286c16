# python tests/stress.py --count 100
"""Faults in a row: each ends the wait of every survivor, in time and by name, and leaves nothing.

Each fault has ranks of its own that train a small model, and one that is struck: killed, cut off
(`ip link set down`), late by 10 s, or made to send a payload of another size or a corrupted
header; in the middle of encoding, of an exchange, between steps, at close or at registration; over
every transport that is installed. Every survivor must get `PeerLost`, `Timeout` or `PayloadError`
within deadline + 1 s, the same as the others (where a cut link does not part them), with a message
that names a rank and what was going on, close its handle,
keep no thread and no socket of it, and end when it is told to. The first that does not ends the run
with status 1, and with what repeats it. Faults are drawn from a seed, each by its own number.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _ranks import Group, Outcome, Process, Zygote, settings
from _ranks_mpi import MpiGroup
from _ranks_mpi import missing as missing_mpi

from compressa.testbed import Testbed, open_testbed

KINDS = ("kill", "link", "late", "size", "header")
MOMENTS = ("encode", "exchange", "between", "close", "registration")
TRANSPORTS = ("tcp", "gloo", "gloo-group", "mpi")
COMPRESSORS = ("topk", "int8", "powersgd", "none")
LATE_S = 10.0
DEADLINE_S = 2.5
SLACK_S = 1.0
CLOSE_S = 6.0  # the handle's own patience, and a second
_HANGS_S = 30.0
_ERRORS = {"PeerLost", "Timeout", "PayloadError"}
_OPERATION = re.compile(r"step|register_comm_hook|digest|addresses|plan|MPI")


@dataclass(frozen=True)
class Fault:
    """What happens to one of several ranks.

    Attributes:
        kind: One of `KINDS`.
        transport: Over which the ranks talk.
        moment: One of `MOMENTS`.
        size: Number of ranks.
        culprit: Whom it happens to.
        step: In which step; with "registration", in which part of it.
        compressor: What the ranks compress with.
    """

    kind: str
    transport: str
    moment: str
    size: int
    culprit: int
    step: int
    compressor: str

    def __str__(self) -> str:
        return (
            f"{self.kind} at {self.moment} over {self.transport}, rank {self.culprit} of "
            f"{self.size}, step {self.step}, {self.compressor}"
        )

    @property
    def survivors(self) -> list[int]:
        """Who must say what it saw: all but who was killed, or is away."""
        gone = self.kind in ("kill", "late")
        return [rank for rank in range(self.size) if not (gone and rank == self.culprit)]


def draw(
    seed: int,
    number: int,
    kinds: Sequence[str] = KINDS,
    transports: Sequence[str] = TRANSPORTS,
    moments: Sequence[str] = MOMENTS,
) -> Fault:
    """Return a fault, the same whenever it is asked for."""
    dice = random.Random(f"{seed}/{number}")
    kind = kinds[number % len(kinds)]
    usable = [t for t in transports if not (kind == "link" and t == "mpi")]
    transport = dice.choice(usable)
    moment, compressor = dice.choice(moments), dice.choice(COMPRESSORS)
    if (kind, transport, moment) == ("kill", "mpi", "close"):
        moment = "between"  # MPI_Finalize would wait for it for ever
    if kind == "size":  # of what bears a length
        moment, compressor = "exchange", dice.choice(COMPRESSORS[:2])
    if kind == "header":
        moment = dice.choice(["exchange", "registration"])
        compressor = dice.choice(COMPRESSORS[:2]) if moment == "exchange" else compressor
    size = dice.randint(2, 3 if transport == "mpi" else 4)
    return Fault(
        kind, transport, moment, size, dice.randrange(size), dice.randint(1, 4), compressor
    )


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
        jobs, hosts = "_rank_jobs_stress", bed.hosts
        places = [{"pid": pids[r], "interface": hosts[r].interface} for r in range(size)]
        self.run(f"{jobs}.enter_network", per_rank=places)
        address = hosts[0].address
        port = self.run(f"{jobs}.host_store_at", ranks=[0], address=address)[0]
        per_rank = [{"rank": rank} for rank in range(size)]
        self.run(f"{jobs}.join_at", per_rank=per_rank, size=size, address=address, port=port)


class Arena:
    """Where faults are inflicted: what ranks are forked from, and hosts on links.

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
        self.deadline_s, self.slack_s = deadline_s, slack_s
        self._rate = rate
        self._stack = ExitStack()
        self._zygote = zygote or Zygote()
        if zygote is None:
            self._stack.callback(self._zygote.close)
        self._bed: Testbed | None = None
        self._pids: list[int] = []

    def close(self) -> None:
        """End everything."""
        self._stack.close()

    def inflict(self, fault: Fault) -> float:
        """Inflict a fault; return after how many seconds the last survivor knew.

        Raises:
            AssertionError: A survivor did not see what it should, in time; or kept something.
        """
        config = self._config(fault)
        with self._group(fault) as group, tempfile.TemporaryDirectory() as folder:
            mark = Path(folder) / "mark"
            started = group.start(
                "_rank_jobs_stress.suffer",
                config=config,
                kind=fault.kind,
                moment=fault.moment,
                culprit=fault.culprit,
                step=fault.step,
                late_s=LATE_S,
                mark=str(mark),
            )
            survivors = [started[rank] for rank in fault.survivors]
            outcomes = group.collect(survivors, _HANGS_S)
            assert mark.exists(), f"it did not happen: {[o.explain() for o in outcomes]}"
            slowest_s = self._judge(fault, outcomes, float(mark.read_text()))
            if fault.kind == "link":
                self._mend(fault.culprit)
            if fault.kind != "kill":
                started[fault.culprit].call(None, {})  # MPI ends together
            _leave(survivors, any_code=_cut_off(fault))
            return slowest_s

    def network_group(self, size: int) -> NetworkGroup:
        """Return ranks on hosts of their own, which the caller ends."""
        bed = self._hosts()
        return NetworkGroup(self._zygote, size, bed, self._pids)

    def _judge(self, fault: Fault, outcomes: list[Outcome], struck_s: float) -> float:
        slowest_s = 0.0
        for outcome in outcomes:
            assert outcome.ok, outcome.explain()
            seen = outcome.value
            where = f"rank {outcome.rank}: {seen}"
            assert _cut_off(fault) or not seen["left"], where
            assert seen["closing_s"] < CLOSE_S, where
            if fault.moment == "close":
                assert not seen["type"], where
                continue
            assert seen["type"] in _ERRORS, where
            assert re.search(r"\branks? \d", seen["message"]), where
            assert _OPERATION.search(seen["message"]), where
            if fault.kind in ("kill", "late") or (
                fault.kind == "link" and outcome.rank != fault.culprit
            ):
                assert seen["ranks"], where
                assert fault.culprit in seen["ranks"], where
            seconds = seen["at_s"] - struck_s
            assert seconds <= self.deadline_s + self.slack_s, f"{seconds:.2f} s after it, {where}"
            slowest_s = max(slowest_s, seconds)
        if fault.moment not in ("close", "registration") and fault.kind != "link":
            verdicts = {(o.value["type"], *o.value["ranks"]) for o in outcomes}
            assert len(verdicts) == 1, [o.value for o in outcomes]
        if fault.kind in ("size", "header"):
            assert "PayloadError" in {o.value["type"] for o in outcomes}, outcomes
        return slowest_s

    def _config(self, fault: Fault) -> dict[str, Any]:
        return settings(
            fault.compressor,
            exchange={
                "transport": fault.transport,
                "deadline_s": self.deadline_s,
                "heartbeat_s": 0.3,
                "silence_s": 0.8 * self.deadline_s,
            },
        )

    @contextmanager
    def _group(self, fault: Fault) -> Iterator[Group]:
        group: Group
        if fault.transport == "mpi":
            group = MpiGroup(fault.size, faults=True)
        elif fault.kind == "link":
            group = self.network_group(fault.size)
        else:
            group = Group(self._zygote, fault.size)
        try:
            yield group
        finally:
            group.end()
            if fault.kind == "link":
                self._mend(fault.culprit)

    def _hosts(self) -> Testbed:
        if self._bed is None:
            self._bed = open_testbed(4, self._rate, "netns", self_check=False)
            self._stack.callback(self._bed.close)
            holders = [self._bed.spawn(i, ["sleep", "infinity"]) for i in range(4)]
            self._pids = [holder.pid for holder in holders]
            time.sleep(0.5)  # until they are where they belong
        return self._bed

    def _mend(self, host: int) -> None:
        bed = self._hosts()
        up = ["ip", "link", "set", "dev", bed.hosts[host].interface, "up"]
        assert bed.spawn(host, up).wait(10) == 0


def _cut_off(fault: Fault) -> bool:
    """Whether torch may go on waiting for its store, which nothing can end."""
    return fault.kind == "link" and fault.moment == "registration"


def _leave(survivors: list[Process], *, any_code: bool) -> None:
    """Whoever is told to end does so, in order."""
    for process in survivors:
        process.call(None, {})
    for process in survivors:
        assert process.wait(15.0) == 0 or any_code, process.stderr


def transports_here() -> list[str]:
    """Name the transports that can be used here."""
    return ["tcp", "gloo", "gloo-group"] + ([] if missing_mpi() else ["mpi"])


def kinds_here() -> list[str]:
    """Name the kinds of faults that can be inflicted here."""
    networks = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter")))
    return [kind for kind in KINDS if kind != "link" or networks]


def main() -> int:
    """Inflict faults; return the exit status."""
    asked = _asked()
    kinds, transports = asked.kinds or kinds_here(), asked.transports or transports_here()
    numbers = [asked.only] if asked.only is not None else list(range(asked.count))
    print(f"{len(numbers)} faults, --seed {asked.seed}, deadline {asked.deadline:g} s")
    for kind in set(KINDS) - set(kinds):
        print(f"not here: {kind}")
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    arena, started_s, failed = Arena(asked.deadline), time.monotonic(), 0
    try:
        for number in numbers:
            fault = draw(asked.seed, number, kinds, transports, asked.moments or MOMENTS)
            try:
                took_s = arena.inflict(fault)
            except AssertionError as error:
                print(f"\n{fault}\n{error}\n")
                print(
                    f"again: python tests/stress.py --seed {asked.seed} --only {number}", flush=True
                )
                failed += 1
                if not asked.keep_going:
                    break
                continue
            seconds[fault.kind, fault.transport].append(took_s)
            if asked.verbose:
                print(f"{number:4d} {took_s:5.2f} s  {fault}", flush=True)
    finally:
        arena.close()
    _print(seconds)
    done, all_s = sum(map(len, seconds.values())), time.monotonic() - started_s
    print(f"{done} of {len(numbers)} seen in time by every survivor; {all_s:.0f} s")
    return min(failed, 1)


def _print(seconds: dict[tuple[str, str], list[float]]) -> None:
    print(f"{'kind':8} {'transport':11} {'count':>5} {'slowest, s after':>17}")
    for (kind, transport), took in sorted(seconds.items()):
        print(f"{kind:8} {transport:11} {len(took):5d} {max(took):17.2f}")


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many faults")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--only", type=int, help="the number of a single one")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="in seconds")
    parser.add_argument("--kinds", nargs="*", choices=KINDS)
    parser.add_argument("--transports", nargs="*")
    parser.add_argument("--moments", nargs="*", choices=MOMENTS)
    parser.add_argument("--keep-going", action="store_true", help="also after one was not seen")
    parser.add_argument("--verbose", action="store_true", help="print each fault")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
