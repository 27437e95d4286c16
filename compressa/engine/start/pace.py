"""The pace of a host: one token bucket for all ranks that send through the same interface.

Ranks tell each other where they are. Those in one network namespace, with one address, share a
bucket in a file, which is unlinked as soon as all of them have opened it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compressa.config.sections import Schedule
from compressa.engine.control.control import Control
from compressa.errors import ConfigError, TransportError
from compressa.pacing import EmptyAt, Pacer, default_burst_bytes
from compressa.transports.frames import FRAME_HEADER_BYTES
from compressa.transports.rendezvous import local_address

_PREFIX = "compressa-pace-"
_NAME = re.compile(re.escape(_PREFIX) + r"\w+")


def burst_bytes(schedule: Schedule) -> int:
    """Return what a host may send at once, if it is paced: as configured, or 1 ms of the rate."""
    rate = schedule.pace_bits_per_s
    return schedule.burst_bytes or default_burst_bytes(rate or 0.0)


def paced_chunk_bytes(schedule: Schedule, chunk_bytes: int) -> int:
    """Return the most bytes of data in a frame: with its header it must fit into a burst.

    Args:
        schedule: The rate and the burst.
        chunk_bytes: What it has without a pace.
    """
    if schedule.pace_bits_per_s is None:
        return chunk_bytes
    return min(chunk_bytes, burst_bytes(schedule) - FRAME_HEADER_BYTES)


def host_pacer(schedule: Schedule, control: Control, deadline_s: float) -> Pacer:
    """Return what paces this rank, together with those that share its interface. Collective.

    Args:
        schedule: The rate and the burst; the same on every rank.
        control: The control channel, which knows where the ranks are.
        deadline_s: Longest wait for the others, twice.

    Raises:
        ConfigError: Ranks share an interface and no folder for temporary files; on every rank.
        TransportError: A rank did not come, or has no address.
    """
    rate = schedule.pace_bits_per_s
    if rate is None:
        return Pacer(None)
    from compressa.transports.lowered.bucket import SharedEmptyAt  # brings numba

    networks = [host.network for host in control.hosts]
    if len(set(networks)) == len(networks):
        return Pacer(rate, burst_bytes(schedule), SharedEmptyAt())
    with _file() as name:
        own = json.dumps([networks[control.rank], local_address(), name])
        texts = control.all_gather(own.encode(), "paces", deadline_s)
        seats = [_read_seat(text, peer) for peer, text in enumerate(texts)]
        first = next(seat for seat in seats if seat[:2] == seats[control.rank][:2])
        shared, trouble = _opened(first[2])
        troubles = control.all_gather(trouble.encode(), "paces", deadline_s)
    for culprit, text in enumerate(troubles):
        if text:
            raise ConfigError(
                f"rank {culprit} cannot share its host's pace: {text.decode()}; give all ranks of "
                "a host one folder for temporary files (TMPDIR), or leave out "
                "schedule.pace_bits_per_s"
            )
    return Pacer(rate, burst_bytes(schedule), shared)


@contextlib.contextmanager
def _file() -> Iterator[str]:
    """Name an empty file in the folder for temporary ones, for as long as it needs a name."""
    try:
        file, path = tempfile.mkstemp(prefix=_PREFIX)
    except OSError as error:
        raise TransportError(
            f"no temporary file can be made for the host's pace ({error.strerror}); set TMPDIR to "
            "a folder that this process may write to"
        ) from error
    os.close(file)
    try:
        yield os.path.basename(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _read_seat(text: bytes, peer: int) -> tuple[str, str, str]:
    """Check what a rank says: its network, its address, and the name of its file, no path."""
    try:
        network, address, name = map(str, json.loads(text))
    except (ValueError, TypeError):
        network, address, name = "", "", ""
    if not _NAME.fullmatch(name):
        raise TransportError(f"rank {peer} said of its pace what cannot be read: {text[:100]!r}")
    return network, address, name


def _opened(name: str) -> tuple[EmptyAt | None, str]:
    from compressa.transports.lowered.bucket import SharedEmptyAt

    path = Path(tempfile.gettempdir()) / name
    try:
        return SharedEmptyAt(path), ""
    except OSError as error:
        return None, f"{path}: {error.strerror}"
