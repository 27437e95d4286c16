"""Hosts: two, or more, with a rank on each that does what it is asked for."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compressa.bench.network.ranks import Ranks, Started
from compressa.bench.network.start import start_each
from compressa.errors import BackendUnavailable
from compressa.testbed import NetnsTestbed, open_testbed

_START_S, _DEADLINE_S = 120.0, 180.0
KEPT_BYTES = 1 << 25
"""Larger pieces of memory go back to the system in each step: the most that malloc can be told."""

# Memory that is given back and asked for again in each step takes the kernel a sixth of it, and
# whether that happens depends on what else is allocated meanwhile: none is given back here.
_KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES)}


def opened_hosts(hosts: int, link: str) -> NetnsTestbed:
    """Open a testbed of network namespaces.

    Raises:
        BackendUnavailable: There are none here; the message says why.
    """
    try:
        bed = open_testbed(hosts, link, kind="netns", self_check=False)
    except BackendUnavailable as refusal:
        raise BackendUnavailable(
            f"compressa bench schedule measures between network namespaces only. {refusal}"
        ) from refusal
    assert isinstance(bed, NetnsTestbed)
    return bed


class Asked:
    """Ranks that do what they are asked for.

    Args:
        ranks: They.
        folder: For what they write.
    """

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        self.folder = folder
        self.version = ranks.version
        self._ranks = ranks

    def __call__(self, what: str, **given: Any) -> dict[str, float]:
        """Have all ranks do something; return what the slowest of them tells, by number.

        Raises:
            TransportError: A rank died, failed, or did not answer in time.
        """
        replies = self._ranks.request([what, given], f"{what} {given}", _DEADLINE_S)
        told = [reply.told for reply in replies]
        return {name: max(float(each[name]) for each in told) for name in told[0]}


@contextmanager
def started_ranks(bed: NetnsTestbed) -> Iterator[Asked]:
    """Start a rank on each host, and end them afterwards."""
    words = [sys.executable, "-m", "compressa.bench.schedule.rank"]
    with tempfile.TemporaryDirectory(prefix="compressa-") as folder:
        place = Path(folder)

        def start(path: Path) -> Sequence[Started]:
            return start_each(bed, place, [*words, str(path), str(_DEADLINE_S)], _KEPT)

        with Ranks(len(bed.hosts), place, start, _START_S) as ranks:
            yield Asked(ranks, place)
