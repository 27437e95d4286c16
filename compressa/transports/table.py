"""The one contract table of transports: every one that `exchange.transport` can name.

Configuration, engine, command line, documentation and tests read it. Adding a transport means its
file, with the function that opens it, and a row here. A row that is put into `TRANSPORTS` before
a configuration is read is a choice like the others.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from compressa.errors import BackendUnavailable, ConfigError
from compressa.transports.base import Transport

if TYPE_CHECKING:
    from compressa.transports.setup import Setup

AUTO = "auto"
AUTO_SUMMARY = (
    "nccl if gradients are on GPUs, the model's process group is NCCL's and nothing is paced, "
    "authenticated or coded by entropy, else tcp"
)
USUAL = "tcp"
"""The transport that goes with every device and every setting."""

_TRIED = ("nccl", USUAL)  # by "auto", in this order


@dataclass(frozen=True)
class Entry:
    """One row.

    Functions are written "module:function", and imported when they are first called.

    Attributes:
        name: What `exchange.transport` says.
        summary: What it is, in words that follow the name, for people who choose.
        opener: Makes the transport from a `Setup`; all ranks call it together.
        ordered: Whether all ranks must launch every exchange in one order, so that no two of them
            can meet alone. Otherwise messages have names, and come in any order.
        paced: Whether it keeps to `schedule.pace_bits_per_s`.
        authenticated: Whether its messages bear the MAC of `exchange.authenticate`.
        lowers: Whether sums of plain values run as tables (`transports.lowered`) between CPUs,
            where nothing is paced or authenticated.
        connections: Whether there can be several between two ranks, as `exchange.connections` says.
        device: Type of the device that gradients must be on; "" for any: those of a GPU go by way
            of the host's memory then.
        backend: Of torch's, that of the process group which it gets for itself.
        needs: What must be there, and how to get it.
        package: What of that Python can import; "" for nothing.
        prepare: Given the number of ranks, raises `ConfigError` or `BackendUnavailable` if this
            process can not take part; "" where every process can.
        start_failed: Told that some ranks did not get through a start, and whether all had come to
            it; "" where nothing follows from that.
    """

    name: str
    summary: str
    opener: str
    ordered: bool = False
    paced: bool = False
    authenticated: bool = False
    lowers: bool = False
    connections: bool = False
    device: str = ""
    backend: str = "gloo"
    needs: str = "a torch with Gloo"
    package: str = ""
    prepare: str = ""
    start_failed: str = ""

    def missing(self) -> str:
        """Return what this machine lacks, and how to get it; nothing if all is there."""
        here = dist.is_backend_available(self.backend)
        if here and (not self.package or importlib.util.find_spec(self.package)):
            return ""
        return f'exchange.transport = "{self.name}" needs {self.needs}'

    def check(self, device: torch.device, size: int) -> None:
        """Raise what keeps this process from taking part.

        Args:
            device: Of the gradients.
            size: Number of ranks.

        Raises:
            ConfigError: It is not for gradients there, or not for so many ranks.
            BackendUnavailable: It needs what is not there.
        """
        if self.device and self.device != device.type:
            raise ConfigError(
                f'exchange.transport = "{self.name}" is for gradients on GPUs, and these are on '
                f'the {device}; use "{AUTO}" or "{USUAL}"'
            )
        if missing := self.missing():
            raise BackendUnavailable(missing)
        if self.prepare:
            resolve_name(self.prepare)(size)

    def open(self, setup: Setup) -> Transport:
        """Open the transport; all ranks must do so together.

        Raises:
            TransportError: A rank did not come in time, or can not be reached.
            ConfigError: The ranks do not agree.
        """
        transport: Transport = resolve_name(self.opener)(setup)
        return transport

    def note_failed_start(self, *, met: bool) -> None:
        """Take note that some ranks did not get through a start.

        Args:
            met: Whether all ranks had come to it.
        """
        if self.start_failed:
            resolve_name(self.start_failed)(met=met)


_ROWS = (
    Entry(
        "tcp",
        "own sockets on the interface that GLOO_SOCKET_IFNAME names",
        "compressa.transports.tcp:open_tcp",
        paced=True,
        authenticated=True,
        lowers=True,
        connections=True,
    ),
    Entry(
        "mpi",
        "between ranks that mpiexec has started",
        "compressa.transports.mpi:open_mpi",
        paced=True,
        needs='mpi4py and an MPI: pip install "compressa[mpi]"',
        package="mpi4py",
        prepare="compressa.transports.mpi_process:load",
        start_failed="compressa.transports.mpi_process:start_failed",
    ),
    Entry(
        "nccl",
        "between GPUs, without the host",
        "compressa.transports.nccl:open_nccl",
        ordered=True,
        device="cuda",
        backend="nccl",
        needs="a torch with NCCL: install a CUDA build of torch",
    ),
)

TRANSPORTS: dict[str, Entry] = {row.name: row for row in _ROWS}
"""Every transport, by name."""


def meant(choice: str) -> list[Entry]:
    """Return the rows that a choice can come to, the first of which that fits is taken.

    Args:
        choice: A name of `TRANSPORTS`, or "auto", which means several.

    Raises:
        KeyError: There is no such name; configurations are checked before.

    Example:
        >>> [row.name for row in meant("auto")]
        ['nccl', 'tcp']
    """
    return [TRANSPORTS[name] for name in (_TRIED if choice == AUTO else (choice,))]
