"""Builds the bridge and the links of a netns testbed, and shapes them, with `ip` and `tc`.

Every host has one interface, eth0, whose other end is a port of a bridge in a namespace of its
own. A token bucket on eth0 limits what the host sends; one on the port limits what it receives.
Where connections are limited, eth0 has one for each; see `_classes`. Where links have a delay, the
ports leave the bridge, and the delay line carries frames between them; see `_delay`.
There is no route and no address outside the testbed's /24, so nothing leaves it.
"""

from __future__ import annotations

import ipaddress
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence

from compressa.errors import BackendUnavailable
from compressa.testbed._classes import class_lines
from compressa.testbed.link import LinkSpec

INTERFACE = "eth0"
MAX_HOSTS = 64
Enter = Callable[[int], list[str]]
# How a TCP sender judges its link. Some machines default to BBR, which paces by an estimate of its
# own: around a ring of four at 100 Mbit/s it took 1.2 to 1.6 times size / rate, Reno 1.05. Reno is
# in every kernel, and every namespace may choose it.
_CONGESTION_CONTROL = ("/proc/sys/net/ipv4/tcp_congestion_control", "reno")
# How many bytes a socket may hold: the least, at first, and the most.
_SOCKET_BYTES = ("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem")
# A sender, and a receiver, account for up to twice what they hold, and must not fall short of it
# while the window still grows.
_SOCKET_SHARE = 4
_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}


def require_programs() -> None:
    """Raise BackendUnavailable, naming the packages, unless ip, tc and nsenter are there."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        packages = sorted({_PROGRAMS[program] for program in missing})
        raise BackendUnavailable(
            f"A shaped network needs the program {' and '.join(missing)}; install the package "
            f"{' and '.join(packages)}."
        )


def choose_addresses(hosts: int, taken: Iterable[str]) -> list[str]:
    """Choose host addresses from a private /24 that neither the machine nor a testbed uses.

    Args:
        hosts: How many addresses.
        taken: Addresses of other testbeds.
    """
    used = [ipaddress.IPv4Network(address) for address in taken]
    routes = json.loads(_run(["ip", "-j", "-4", "route", "show", "table", "all"]) or "[]")
    destinations = (route["dst"] for route in routes if route["dst"] != "default")
    used += [ipaddress.IPv4Network(text, strict=False) for text in destinations]
    networks = list(ipaddress.IPv4Network("10.213.0.0/16").subnets(new_prefix=24))
    free = [n for n in networks if not any(n.overlaps(other) for other in used)]
    if not free:
        raise BackendUnavailable("All of 10.213.0.0/16 is in use; free a /24 for the testbed.")
    chosen = random.SystemRandom().choice(free)
    return [str(chosen[i + 1]) for i in range(hosts)]


def build(enter: Enter, net_paths: Sequence[str], addresses: Sequence[str]) -> None:
    """Make the bridge, the links and the addresses; nothing is shaped yet.

    Args:
        enter: Gives the words that run a command in namespace i (0 is the bridge's).
        net_paths: The namespaces as files, in the same order.
        addresses: The hosts' addresses.

    Raises:
        BackendUnavailable: The kernel or `ip` refuses; the message has its words.
    """
    # No IPv6 addresses and no multicast snooping: only the hosts' own traffic may be counted.
    lines = ["link add br0 type bridge stp_state 0 mcast_snooping 0"]
    lines += ["link set br0 addrgenmode none", "link set br0 up"]
    for i, path in enumerate(net_paths[1:]):
        lines.append(f"link add {port(i)} type veth peer name {INTERFACE} netns {path}")
        lines.append(f"link set {port(i)} master br0 addrgenmode none")
        lines.append(f"link set {port(i)} up")
    _batch(enter(0), "ip", lines)
    for i, address in enumerate(addresses):
        lines = ["link set lo up", f"link set {INTERFACE} addrgenmode none"]
        lines += [f"addr add {address}/24 dev {INTERFACE}", f"link set {INTERFACE} up"]
        _batch(enter(i + 1), "ip", lines)
        file, text = _CONGESTION_CONTROL
        _run([*enter(i + 1), "tee", file], text)


def shape(enter: Enter, hosts: int, link: LinkSpec, *, shaped_before: bool) -> None:
    """Give both ends of every host's link the rate of `link`.

    Args:
        enter: As for `build`.
        hosts: How many hosts.
        link: The rate, or unshaped.
        shaped_before: Whether the links have a token bucket already.

    Raises:
        BackendUnavailable: The kernel has no token bucket filter, or refuses.
    """
    _shape(enter(0), [port(i) for i in range(hosts)], link.without_limit, shaped_before)
    for i in range(hosts):
        _shape(enter(i + 1), [INTERFACE], link, shaped_before)


def _shape(enter: list[str], devices: list[str], link: LinkSpec, shaped_before: bool) -> None:
    gso_bytes = link.of_connection.gso_max_bytes
    _batch(enter, "ip", [f"link set {d} gso_max_size {gso_bytes}" for d in devices])
    if link.connection_bits_per_s is not None:
        before = [f"qdisc del dev {d} root" for d in devices if shaped_before]
        lines = [line for d in devices for line in class_lines(d, link)]
        _batch(enter, "tc", before + lines)
    elif link.rate_bits_per_s is not None:
        bucket = (
            f"rate {link.rate_bits_per_s:.0f}bit burst {link.burst_bytes}b "
            f"limit {link.queue_bytes}b"
        )
        _batch(enter, "tc", [f"qdisc replace dev {d} root tbf {bucket}" for d in devices])
    elif shaped_before:
        _batch(enter, "tc", [f"qdisc del dev {d} root" for d in devices])


def bridge(enter: Enter, hosts: int, *, bridged: bool) -> None:
    """Make the hosts' links ports of the bridge, or no longer.

    Args:
        enter: As for `build`.
        hosts: How many hosts.
        bridged: Whether the bridge joins them, or the delay line does.

    Raises:
        BackendUnavailable: `ip` refuses.
    """
    master = "master br0" if bridged else "nomaster"
    _batch(enter(0), "ip", [f"link set {port(i)} {master}" for i in range(hosts)])


def widen(enter: Enter, hosts: int, link: LinkSpec) -> None:
    """Let the hosts' TCP sockets hold what is under way on a link; without a delay, as ever.

    Args:
        enter: As for `build`.
        hosts: How many hosts.
        link: With its delay.

    Raises:
        BackendUnavailable: The kernel refuses.
    """
    for file in _SOCKET_BYTES:
        # The bridge's namespace has no sockets and keeps what it was made with.
        least, first, most = map(int, _run([*enter(0), "cat", file]).split())
        text = f"{least} {first} {max(most, _SOCKET_SHARE * link.round_trip_bytes)}"
        for i in range(hosts):
            _run([*enter(i + 1), "tee", file], text)


def port(host_index: int) -> str:
    """Name the bridge's end of a host's link."""
    return f"h{host_index}"


def _batch(enter: list[str], program: str, lines: list[str]) -> None:
    _run([*enter, program, "-batch", "-"], "\n".join(lines) + "\n")


def _run(argv: list[str], text: str = "") -> str:
    # A session of its own: Ctrl-C must not stop it half-way; the owner takes everything down.
    done = subprocess.run(
        argv, input=text, capture_output=True, text=True, start_new_session=True, check=False
    )
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())
        raise BackendUnavailable(
            f"The network could not be made ({words}); the kernel needs bridge, veth and sch_tbf, "
            "for limits of connections also sch_htb and cls_u32, and this user root or user "
            "namespaces."
        )
    return done.stdout
