"""`compressa testbed`: hosts on a shaped network that stay up until they are taken down."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Annotated, cast

import typer

from compressa.errors import ConfigError
from compressa.testbed import (
    Testbed,
    attach_testbed,
    list_testbeds,
    start_testbed,
    stop_testbed,
    sweep_testbeds,
)
from compressa.testbed.manage import Kind

testbed_app = typer.Typer(
    help="Several hosts on this machine, on a network as slow as you ask for.\n\n"
    "Example: compressa testbed up --hosts 4 --link 100mbit",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str | None, typer.Option(help="Which testbed; not needed if there is only one.")]


@testbed_app.command()
def up(
    hosts: Annotated[int, typer.Option(help="How many hosts, 2 to 64.")] = 4,
    link: Annotated[
        str,
        typer.Option(
            help='Of each host: "100mbit", "unshaped", "10mbit+100ms" (from host to host).'
        ),
    ] = "100mbit",
    name: Annotated[str, typer.Option(help="What to call it.")] = "default",
    kind: Annotated[str, typer.Option(help="auto, netns or loopback.")] = "auto",
    check: Annotated[bool, typer.Option(help="Measure the links once they are up.")] = True,
) -> None:
    """Bring a testbed up. It stays until `compressa testbed down`.

    Example: compressa testbed up --hosts 4 --link 100mbit
    """
    _report_swept(sweep_testbeds())
    with start_testbed(hosts, link, cast(Kind, kind), name, self_check=check) as bed:
        typer.echo(f"Testbed {bed.name} is up: {hosts} hosts ({bed.kind}), link {bed.link}.")
        for host in bed.hosts:
            typer.echo(f"  {host.name}  {host.address}  {host.interface}")
        if bed.notice:
            typer.echo(bed.notice, err=True)


@testbed_app.command()
def down(
    name: Name = None,
    all_: Annotated[bool, typer.Option("--all", help="Take all of them down.")] = False,
) -> None:
    """Take a testbed down, with everything that runs on it, and clear up after killed programs.

    Example: compressa testbed down --all
    """
    _report_swept(sweep_testbeds())
    up = list_testbeds()
    persistent = [bed.name for bed in up if bed.owner_pid is None]
    if name is None and not persistent:
        owned = [f"{bed.name} goes with pid {bed.owner_pid}" for bed in up]
        typer.echo("; ".join(["No testbed is up" + " that stays" * bool(owned), *owned]) + ".")
        return
    for one in persistent if all_ else [name]:
        typer.echo(f"Testbed {stop_testbed(one)} is down.")


@testbed_app.command(name="exec")
def exec_(
    host: Annotated[str, typer.Argument(help="Number or name of the host.", metavar="HOST")],
    command: Annotated[
        list[str], typer.Argument(help="The command, after --.", metavar="-- CMD...")
    ],
    name: Name = None,
    isolate: Annotated[
        bool, typer.Option(help="Own hostname and shared memory, as MPI and NCCL need.")
    ] = False,
) -> None:
    """Run a command on a host of a testbed; its exit code is passed on.

    Example: compressa testbed exec 0 -- ip addr show eth0
    """
    with attach_testbed(name) as bed:
        child = bed.spawn(_host_index(bed, host), command, isolate=isolate, new_session=False)
        with _left_to_the_child():
            code = child.wait()
    # As a shell says it: 128 and the number of the signal.
    raise typer.Exit(code if code >= 0 else 128 - code)


@testbed_app.command()
def status() -> None:
    """Show the testbeds that are up, and what each host has sent and received.

    Example: compressa testbed status
    """
    testbeds = list_testbeds()
    if not testbeds:
        typer.echo("No testbed is up.")
    for bed in testbeds:
        until = "until it is taken down" if bed.owner_pid is None else f"with pid {bed.owner_pid}"
        typer.echo(f"{bed.name}: {bed.kind}, link {bed.link}, stays {until}")
        traffic = _traffic(bed.name) if bed.owner_pid is None else None
        for i, (host, address) in enumerate(bed.hosts):
            typer.echo(f"  {i}  {host}  {address}{traffic[i] if traffic else ''}")


def _traffic(name: str) -> list[str] | None:
    with attach_testbed(name) as bed:
        counters = bed.counters()
    if counters is None:
        return None
    return [f"  sent {c.tx_bytes} bytes, received {c.rx_bytes} bytes" for c in counters]


def _host_index(bed: Testbed, text: str) -> int:
    names = [host.name for host in bed.hosts]
    if text in names:
        return names.index(text)
    if not text.isdigit():
        raise ConfigError(
            f'There is no host "{text}"; use a number from 0 to {len(names) - 1}, or one of '
            f"{', '.join(names)}."
        )
    index = int(text)
    bed.check_host(index)
    return index


@contextlib.contextmanager
def _left_to_the_child() -> Iterator[None]:
    # Ctrl-C reaches the child from the terminal; how to end is for the child to decide.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _report_swept(names: list[str]) -> None:
    for name in names:
        typer.echo(f"Cleared up testbed {name}, whose program had ended.")
