"""Forks: a process that is forked keeps no connection of its parent's open.

A data loader's worker is a copy of its rank, sockets included. While it lives, the network does not
tell the other ranks that its parent has died. So it closes its copies at once, and never shuts a
connection down, which would end the parent's, too.

Gloo's sockets are not Python's. TCP sockets that appear while a group is made are noted with their
inodes, and a child closes those that are still the same. That is for Linux only.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Protocol
from weakref import WeakSet

_FOLDER = "/proc/self/fd"


class Closable(Protocol):
    """A socket or selector."""

    def close(self) -> None:
        """Let go of the descriptor, and do nothing that another process notices."""


_ours: WeakSet[Closable] = WeakSet()
_of_groups: dict[int, str] = {}  # what the descriptors are: a socket's inode


def own(closable: Closable) -> None:
    """Have a socket, or what waits for sockets, closed in every child that is forked from now on.

    It is held by a weak reference only. From any thread.

    Args:
        closable: Its `close` must do nothing but let go of the descriptor.
    """
    _ours.add(closable)


@contextlib.contextmanager
def owning_new() -> Iterator[None]:
    """Have TCP sockets that libraries open meanwhile closed in every child, too.

    That includes those of other threads of this process which connect in the same moment.
    """
    before = _sockets()
    try:
        yield
    finally:
        now = _sockets()
        new = {fd: name for fd, name in now.items() if before.get(fd) != name and _is_tcp(fd)}
        known = {fd: name for fd, name in _of_groups.items() if now.get(fd) == name}
        _of_groups.clear()
        _of_groups.update(known | new)


def _sockets() -> dict[int, str]:
    """Return the sockets of this process with their inodes."""
    found = {}
    with contextlib.suppress(OSError):  # another system, or no descriptor is left to look
        for name in os.listdir(_FOLDER):
            with contextlib.suppress(OSError):  # it has been closed meanwhile
                target = os.readlink(f"{_FOLDER}/{name}")
                if target.startswith("socket:"):
                    found[int(name)] = target
    return found


def _is_tcp(descriptor: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        return copy.type == socket.SOCK_STREAM and copy.family != socket.AF_UNIX
    return False


def _let_go() -> None:
    """Close the child's copies; a number that a library may close again stays taken."""
    for closable in list(_ours):
        with contextlib.suppress(OSError):
            closable.close()
    now = _sockets()
    same = [fd for fd, name in _of_groups.items() if now.get(fd) == name]
    if same:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in same:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
    _of_groups.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
