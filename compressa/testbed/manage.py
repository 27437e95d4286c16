"""Opens testbeds for a program, and keeps those that outlive the command that made them."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from typing import Literal

from compressa.errors import BackendUnavailable, ConfigError, StateError
from compressa.testbed import _network
from compressa.testbed._processes import ProcessId
from compressa.testbed._records import Record, locked, read_records, sweep
from compressa.testbed.base import Testbed
from compressa.testbed.link import LinkSpec
from compressa.testbed.loopback import LoopbackTestbed, make_loopback
from compressa.testbed.netns import NetnsTestbed, make_netns
from compressa.testbed.selfcheck import check_links

Kind = Literal["auto", "netns", "loopback"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")


@dataclasses.dataclass(frozen=True)
class TestbedStatus:
    """One testbed as `compressa testbed status` shows it.

    Attributes:
        name: Its name.
        kind: "netns" or "loopback".
        link: Its link, as text.
        hosts: Names and addresses of its hosts.
        owner_pid: The process that it ends with, or None if it stays until it is taken down.
    """

    __test__ = False
    name: str
    kind: str
    link: str
    hosts: tuple[tuple[str, str], ...]
    owner_pid: int | None


def open_testbed(
    hosts: int = 4,
    link: LinkSpec | str = "100mbit",
    kind: Kind = "auto",
    *,
    self_check: bool = True,
) -> Testbed:
    """Bring up a testbed that ends with this program, however the program ends.

    Args:
        hosts: How many hosts, 2 to 64.
        link: The speed of each host's link: "100mbit", "1gbit", "unshaped", "10mbit+100ms"
            (which takes 100 ms from host to host), or a LinkSpec.
        kind: "netns" for network namespaces, "loopback" for plain processes, "auto" for the first
            where it is permitted; then `notice` says what the second means for results.
        self_check: Measure the links before returning: some 2 s, and of 4 hosts 100 delays more.

    Returns:
        The testbed; use it as a context manager, or call `close`.

    Raises:
        ConfigError: An argument is out of range.
        BackendUnavailable: Network namespaces were asked for and are not permitted.
        TransportError: The links do not hold their rate.

    Example:
        >>> with open_testbed(hosts=2, kind="loopback", self_check=False) as bed:
        ...     bed.spawn(0, ["true"]).wait()
        0
    """
    bed = _make(hosts, LinkSpec.parse(link), kind, name=None)
    try:
        if self_check:
            check_links(bed)
    except BaseException:
        bed.close()
        raise
    return bed


def start_testbed(
    hosts: int, link: LinkSpec | str, kind: Kind, name: str, *, self_check: bool = True
) -> Testbed:
    """Bring up a testbed that stays until `stop_testbed`, and attach to it.

    Args:
        hosts: As for `open_testbed`, likewise link, kind and self_check.
        link: See hosts.
        kind: See hosts.
        name: What to call it.
        self_check: See hosts.

    Raises:
        ConfigError: The name is taken or not a name, or an argument is out of range.
        BackendUnavailable: As for `open_testbed`, likewise TransportError.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f'"{name}" is not a name for a testbed; use up to 32 letters, digits, "-", "_" and ".".'
        )
    bed = _make(hosts, LinkSpec.parse(link), kind, name=name)
    try:
        if self_check:
            check_links(bed)
    except BaseException:
        bed.close()
        stop_testbed(name)
        raise
    return bed


def attach_testbed(name: str | None = None) -> Testbed:
    """Attach to a persistent testbed, to run processes on its hosts; it stays up on `close`.

    Args:
        name: Which; None if there is only one.

    Raises:
        StateError: There is none of that name, or several and no name was given.
    """
    record = _find(name)
    return (NetnsTestbed if record.kind == "netns" else LoopbackTestbed)(record, None)


def stop_testbed(name: str | None = None) -> str:
    """Take a persistent testbed down, with all processes on its hosts, and return its name.

    Args:
        name: Which; None if there is only one.

    Raises:
        StateError: As for `attach_testbed`, or a process cannot be ended.
    """
    with locked():
        record = _find(name)
        record.end()
    return record.name


def list_testbeds() -> list[TestbedStatus]:
    """List the testbeds of this user that are up, persistent or not."""
    return [
        TestbedStatus(
            record.name,
            record.kind,
            record.link,
            tuple((name, address) for name, address, _ in record.hosts),
            None if record.owner is None else record.owner.pid,
        )
        for record in read_records()
        if not record.abandoned()
    ]


def _find(name: str | None) -> Record:
    persistent = [r for r in read_records() if r.owner is None and not r.abandoned()]
    found = [r for r in persistent if name in (None, r.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(r.name for r in persistent)
    if found:
        raise StateError(f"Several testbeds are up ({names}); say which with --name.")
    if name is None or not names:
        raise StateError("No testbed is up; start one with `compressa testbed up`.")
    raise StateError(f'No testbed is called "{name}"; up are: {names}.')


def _make(hosts: int, link: LinkSpec, kind: Kind, name: str | None) -> Testbed:
    if not 2 <= hosts <= _network.MAX_HOSTS:
        raise ConfigError(
            f"A testbed of {hosts} hosts cannot be made; choose 2 to {_network.MAX_HOSTS}."
        )
    if kind not in ("auto", "netns", "loopback"):
        raise ConfigError(f'"{kind}" is no kind of testbed; choose auto, netns or loopback.')
    sweep()
    if kind == "loopback":
        return _make_one("loopback", hosts, link, name)
    try:
        return _make_one("netns", hosts, link, name)
    except BackendUnavailable as refusal:
        if kind == "netns":
            raise
        bed = _make_one("loopback", hosts, link, name)
        bed.notice = f"{refusal} {bed.notice}"
        return bed


def _make_one(
    kind: Literal["netns", "loopback"], hosts: int, link: LinkSpec, name: str | None
) -> Testbed:
    if kind == "netns":
        _network.require_programs()
    with locked():
        record = _plan(kind, hosts, link, name)
        # The lock is held until the keeper lives: until then a persistent plan looks abandoned.
        record.write()
        try:
            return make_netns(record) if kind == "netns" else make_loopback(record)
        except BaseException:
            record.end()
            raise


def _plan(kind: str, hosts: int, link: LinkSpec, name: str | None) -> Record:
    others = read_records()
    if name is not None and name in {other.name for other in others}:
        raise ConfigError(
            f'A testbed called "{name}" is up already; take it down with `compressa testbed down '
            f"--name {name}` or choose another name."
        )
    mark = secrets.token_hex(4)
    if kind == "netns":
        taken = [address for other in others for _, address, _ in other.hosts]
        addresses, interface = _network.choose_addresses(hosts, taken), _network.INTERFACE
    else:
        addresses, interface = ["127.0.0.1"] * hosts, "lo"
    return Record(
        mark=mark,
        name=name or mark,
        kind=kind,
        link=str(link),
        hosts=tuple((f"cmpr-{mark}-h{i}", a, interface) for i, a in enumerate(addresses)),
        owner=ProcessId.of(os.getpid()) if name is None else None,
    )
