"""Hosts that are only processes: what is left where network namespaces are not permitted.

The processes share 127.0.0.1. There is no link to shape, so the rate is kept by the senders
themselves (`compressa.pacing`): Compressa's transport asks the pacer before each send.
PyTorch's own hooks send from inside Gloo and cannot be paced; a proxy in between would not help,
since Gloo connects every pair of ranks by addresses that it exchanges itself. Nor can bytes be
told apart on a shared interface, so there are no counters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, final

from compressa.errors import ConfigError
from compressa.pacing import PACE_FILE_VARIABLE, PACE_VARIABLE
from compressa.testbed._keeper_client import Keeper, start_keeper
from compressa.testbed._records import Record
from compressa.testbed.base import Testbed
from compressa.testbed.link import LinkSpec

LOOPBACK_NOTICE = (
    "This is no shaped network: the hosts are processes on 127.0.0.1. Rows of Compressa are paced "
    "in the sender (each send waits for size / rate; receiving is not limited, and the hosts do "
    "not contend). Rows of PyTorch's own DDP and hooks are NOT limited at all and cannot be "
    "compared with them. Bytes are what the program accounts, not what an interface counted."
)


@final
class LoopbackTestbed(Testbed):
    """Ordinary processes behind a rate limit of their own. See `open_testbed`."""

    kind: Literal["netns", "loopback"] = "loopback"
    notice: str | None = LOOPBACK_NOTICE

    def set_link(self, link: LinkSpec | str) -> None:
        """Tell running processes, which take it over with `Pacer.reload`, and those to come.

        See `Testbed.set_link`.
        """
        self._check_open()
        record = dataclasses.replace(self._record, link=str(LinkSpec.parse(link)))
        write_pace(record)
        self._record = record
        self._record.write()

    def counters(self) -> None:
        """Return None: all hosts share one interface, and its bytes cannot be told apart."""
        self._check_open()

    def command(
        self, host_index: int, argv: Sequence[str], *, cwd: str | Path | None, isolate: bool
    ) -> list[str]:
        """Return the command as it is."""
        return list(argv)

    def environment(self, host_index: int) -> dict[str, str]:
        """Add the rate, and the file that follows `set_link`."""
        environment = super().environment(host_index)
        environment[PACE_VARIABLE] = _pace_text(self.link)
        environment[PACE_FILE_VARIABLE] = str(self._record.pace_file)
        return environment

    def _release(self) -> None:
        """Nothing is held open."""


def make_loopback(record: Record) -> LoopbackTestbed:
    """Start the watch over a loopback testbed's processes; there is no network to make.

    Args:
        record: The plan; it is on disk already. Without an owner the testbed is persistent.

    Raises:
        BackendUnavailable: The keeper did not start.
    """
    keeper: Keeper = start_keeper(record.mark, namespaces=0, persistent=record.owner is None)
    try:
        record = dataclasses.replace(record, keeper=keeper.process)
        record.write()
        write_pace(record)
    except BaseException:
        keeper.close()
        raise
    return LoopbackTestbed(record, keeper if record.owner else None)


def write_pace(record: Record) -> None:
    """Write the rate that the processes of a loopback testbed must keep; readers see it whole.

    Raises:
        ConfigError: Connections are to be limited, or the link has a delay.
    """
    part = record.pace_file.with_suffix(".pace-part")
    part.write_text(_pace_text(LinkSpec.parse(record.link)))
    part.replace(record.pace_file)


def _pace_text(link: LinkSpec) -> str:
    if link.connection_bits_per_s is not None:
        raise ConfigError(
            f'"{link}": a sender can not limit each of its connections; use kind="netns", or a '
            "link without such a limit."
        )
    if link.delay_ms:
        raise ConfigError(
            f'"{link}": a sender can not delay what the machine delivers; use kind="netns", or a '
            "link without a delay."
        )
    return "" if link.rate_bits_per_s is None else f"{link.rate_bits_per_s:.0f}"
