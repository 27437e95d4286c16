"""How hosts reach each other: interfaces, the one that ranks listen on, the host's name."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compressa.cli._finding import Finding, fault, noted
from compressa.errors import TransportError

_SYSTEM = Path("/sys/class/net")
_USUAL_MTU = 1500
_CHOSEN_BY = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Interface:
    """One that has an IPv4 address.

    Attributes:
        name: As GLOO_SOCKET_IFNAME takes it.
        address: IPv4.
        mtu: Bytes of a packet; None if not known.
        mbits_per_s: What its port is set to; None where there is none, or none is plugged in.
    """

    name: str
    address: str
    mtu: int | None
    mbits_per_s: int | None

    @property
    def loopback(self) -> bool:
        """Whether it reaches this machine only."""
        return ipaddress.ip_address(self.address).is_loopback

    def __str__(self) -> str:
        """Name it with all that is known."""
        speed = f", {self.mbits_per_s} Mbit/s" if self.mbits_per_s else ""
        return f"{self.name} {self.address} (MTU {self.mtu or 'not known'}{speed})"


def network() -> Iterator[Finding]:
    """Yield what is found of interfaces and names."""
    known = interfaces()
    yield _listed(known)
    yield chosen(known)
    yield _host_name()


def interfaces() -> list[Interface]:
    """Return all that have an IPv4 address."""
    from compressa.transports.rendezvous import interface_address

    found = []
    for _, name in socket.if_nameindex():
        with contextlib.suppress(TransportError):
            address = interface_address(name)
            found.append(Interface(name, address, _number(name, "mtu"), _number(name, "speed")))
    return found


def _number(interface: str, fact: str) -> int | None:
    try:
        value = int((_SYSTEM / interface / fact).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # without a port there is no speed
        return None
    return value if value > 0 else None


def _listed(known: list[Interface]) -> Finding:
    found = ", ".join(map(str, known)) or "none with an IPv4 address"
    small = [one.name for one in known if one.mtu is not None and one.mtu < _USUAL_MTU]
    if small:
        advice = "a VPN or an overlay takes room from each packet; ask for a direct way"
        return noted("interfaces", f"{found}; small MTU on {', '.join(small)}", advice)
    return Finding("interfaces", found)


def chosen(known: list[Interface]) -> Finding:
    """Return which interface ranks would listen on, and whether others can reach it.

    Args:
        known: All interfaces.
    """
    from compressa.transports.rendezvous import local_address

    try:
        address = local_address()
    except TransportError as error:
        return fault("ranks listen on", str(error), f"unset {_CHOSEN_BY}, or name another")
    own = next((one.name for one in known if one.address == address), "")
    why = _CHOSEN_BY if os.environ.get(_CHOSEN_BY) else "the host's name"
    found = f"{address}{own and f' of {own}'}, by {why}"
    outward = [one.name for one in known if not one.loopback]
    if ipaddress.ip_address(address).is_loopback and outward:
        advice = f"with ranks on other machines: export {_CHOSEN_BY}={' or '.join(outward)}"
        return noted("ranks listen on", f"{found}: this machine only", advice)
    return Finding("ranks listen on", found)


def _host_name() -> Finding:
    name = socket.gethostname()
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        advice = f"add a line for {name} to /etc/hosts, or set {_CHOSEN_BY}"
        return noted("host name", f"{name} stands for no address ({error})", advice)
    addresses = dict.fromkeys(str(answer[4][0]) for answer in answers)
    return Finding("host name", f"{name} stands for {', '.join(addresses)}")
