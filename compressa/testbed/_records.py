"""One JSON file per testbed, so that what a killed program leaves behind is found and ended.

The file is written before anything is made and removed after everything is gone. It names the
owner by process number and start time; a testbed whose owner (or keeper) is dead, or that is from
an earlier boot, is swept by the next start.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressa.errors import BackendUnavailable, StateError
from compressa.testbed._processes import ProcessId, end_processes

DIRECTORY_VARIABLE = "COMPRESSA_TESTBED_DIR"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of one testbed across processes.

    Attributes:
        mark: Its id, carried in the environment of all its processes.
        name: The user's name for a persistent testbed; the mark for one that belongs to a program.
        kind: "netns" or "loopback".
        link: The present link, as text.
        hosts: Name, address and interface of each host.
        owner: The program that it ends with, or None if it stays until it is taken down.
        keeper: The process that holds its namespaces; None while it is being made.
        net_fds: The keeper's files of the namespaces: the bridge's, then one per host.
        line: The process that delays what passes the links; None where they have no delay.
        user_namespace: Whether the namespaces are inside a user namespace (made without root).
        boot: The boot of the machine that it belongs to.
    """

    mark: str
    name: str
    kind: str
    link: str
    hosts: tuple[tuple[str, str, str], ...]
    owner: ProcessId | None
    keeper: ProcessId | None = None
    net_fds: tuple[int, ...] = ()
    line: ProcessId | None = None
    user_namespace: bool = False
    boot: str = ""

    @property
    def file(self) -> Path:
        """Where the record is kept."""
        return directory() / f"{self.mark}.json"

    @property
    def hosts_file(self) -> Path:
        """Where the testbed's /etc/hosts is kept."""
        return directory() / f"{self.mark}.hosts"

    @property
    def pace_file(self) -> Path:
        """Where a loopback testbed writes its present rate."""
        return directory() / f"{self.mark}.pace"

    def write(self) -> None:
        """Write or replace the record's file; a reader never sees half of it."""
        text = json.dumps(dataclasses.asdict(dataclasses.replace(self, boot=_boot())))
        part = self.file.with_suffix(".part")
        part.write_text(text)
        part.replace(self.file)

    def abandoned(self) -> bool:
        """Whether nobody can use or end this testbed any more."""
        if self.boot != _boot():
            return True
        if self.owner is not None:
            return not self.owner.alive()
        return self.keeper is None or not self.keeper.alive()

    def network_inodes(self) -> list[int]:
        """Inode numbers of the namespaces; empty once the keeper is gone."""
        if self.keeper is None or not self.keeper.alive():
            return []
        try:
            return [os.stat(f"/proc/{self.keeper.pid}/fd/{fd}").st_ino for fd in self.net_fds]
        except FileNotFoundError:  # it is ending: its files go before it does
            return []

    def end(self) -> None:
        """Kill every process of the testbed, its keeper last, and forget it.

        Raises:
            StateError: A process could not be ended; the record stays, for another attempt.
        """
        left: set[int] = set()
        if self.boot in ("", _boot()):
            keepers = [] if self.keeper is None else [self.keeper.pid]
            # The keeper holds the namespaces by which processes without the mark are found.
            left = end_processes(self.mark, self.network_inodes(), spare=keepers)
            left = left or end_processes(self.mark)
        if left:
            raise StateError(
                f"Testbed {self.name} is not down: processes {sorted(left)} could not be killed; "
                "end them as the user who started them, then run `compressa testbed down`."
            )
        self.forget()

    def forget(self) -> None:
        """Remove the record's files."""
        for file in (self.hosts_file, self.pace_file, self.file):
            file.unlink(missing_ok=True)


def directory() -> Path:
    """Give the directory of the records, made for this user alone.

    Raises:
        BackendUnavailable: It belongs to somebody else.
    """
    path = Path(os.environ.get(DIRECTORY_VARIABLE) or _default_directory())
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.geteuid():
        raise BackendUnavailable(
            f"{path} belongs to another user; set {DIRECTORY_VARIABLE} to a directory of your own."
        )
    return path


def _default_directory() -> str:
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return "/run/compressa-testbed"
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return f"{base}/compressa-testbed-{os.geteuid()}"


def read_records() -> list[Record]:
    """Read the records of all testbeds of this user, in the order of their names.

    Raises:
        StateError: A record cannot be read; the message names the file.
        BackendUnavailable: Their directory belongs to somebody else.
    """
    records = [_read(file) for file in directory().glob("*.json")]
    return sorted((r for r in records if r is not None), key=lambda r: (r.name, r.mark))


def _read(file: Path) -> Record | None:
    try:
        fields: dict[str, Any] = json.loads(file.read_text())
        for key in ("owner", "keeper", "line"):
            fields[key] = None if fields.get(key) is None else ProcessId(**fields[key])
        fields["hosts"] = tuple((str(n), str(a), str(i)) for n, a, i in fields["hosts"])
        fields["net_fds"] = tuple(fields["net_fds"])
        return Record(**fields)
    except FileNotFoundError:
        return None  # taken down since the directory was listed
    except (ValueError, TypeError, KeyError) as error:
        raise StateError(f"{file} is no record of a testbed ({error}); remove it.") from error


def sweep() -> list[str]:
    """End all abandoned testbeds and return their names.

    Raises:
        StateError: A record cannot be read, or a process of one cannot be ended.
        BackendUnavailable: The directory of records belongs to somebody else.
    """
    with locked():
        abandoned = [record for record in read_records() if record.abandoned()]
        for record in abandoned:
            record.end()
    return [record.name for record in abandoned]


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock under which names and addresses are chosen and testbeds are swept."""
    with (directory() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
