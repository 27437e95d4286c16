"""Prepares a process on a host of the testbed and then becomes the command asked for.

It is started inside the host's network namespace, as `ip netns exec` would, and gives the command
a /sys that shows this host's interfaces and an /etc/hosts that names the testbed's hosts. Isolated
processes also get a hostname, System V and POSIX shared memory of their own: MPI and NCCL take
ranks that share those for ranks on one host, and would pass the link by.

The command keeps this process's number, so signals and exit codes need no forwarding.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from compressa.testbed._linux import (
    MOUNT_BIND,
    MOUNT_RECURSIVE,
    MOUNT_SLAVE,
    NEW_HOSTNAME,
    NEW_IPC,
    NEW_MOUNTS,
    mount,
    unshare,
)

_NOT_FOUND_EXIT_CODE = 127
_NOT_STARTED_EXIT_CODE = 126


def main() -> None:
    """Run the launcher: argv[1] is JSON with cwd, hosts_file and hostname (or null); then argv."""
    options, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        unshare(NEW_MOUNTS | (NEW_HOSTNAME | NEW_IPC if options["hostname"] else 0))
        _mount_views(options["hosts_file"])
        if options["hostname"]:
            _isolate(options["hostname"])
        os.chdir(options["cwd"])
    except OSError as error:
        sys.stderr.write(f"compressa testbed: the host cannot be entered: {error}\n")
        sys.exit(_NOT_STARTED_EXIT_CODE)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"compressa testbed: {command[0]}: {error.strerror}\n")
        missing = isinstance(error, FileNotFoundError)
        sys.exit(_NOT_FOUND_EXIT_CODE if missing else _NOT_STARTED_EXIT_CODE)


def _mount_views(hosts_file: str) -> None:
    # Slave: what is mounted here stays here, and what the machine unmounts goes here as well.
    mount("none", "/", flags=MOUNT_SLAVE | MOUNT_RECURSIVE)
    # /sys shows the network namespace it was mounted in.
    mount("sysfs", "/sys", "sysfs")
    if os.path.exists("/etc/hosts"):
        mount(hosts_file, "/etc/hosts", flags=MOUNT_BIND)


def _isolate(hostname: str) -> None:
    socket.sethostname(hostname)
    mount("tmpfs", "/dev/shm", "tmpfs", options="mode=1777")


if __name__ == "__main__":
    main()
