"""The few Linux calls that Python 3.11 does not offer: unshare and mount.

The C library is loaded on the first call, so that importing the testbed works everywhere.
"""

from __future__ import annotations

import ctypes
import functools
import os

NEW_MOUNTS = 0x00020000
NEW_HOSTNAME = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_NETWORK = 0x40000000

MOUNT_BIND = 1 << 12
MOUNT_RECURSIVE = 1 << 14
MOUNT_SLAVE = 1 << 19


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces of the kinds in `flags`.

    Raises:
        OSError: The kernel refuses, mostly for want of privilege.
    """
    _check(_libc().unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` on `target` in this process's mount namespace.

    Raises:
        OSError: The kernel refuses.
    """
    result = _libc().mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(result, f"mount {source} on {target}")
