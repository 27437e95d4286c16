"""The process that holds a testbed's network namespaces open, and ends it with its owner.

A namespace lives as long as a process or an open file refers to it. The keeper opens one file per
namespace and then waits for the end of its standard input, which comes when the owner closes it
or dies, by kill -9 too. Then it ends every process of the testbed, and its own end lets go of the
namespaces, with their bridges, links and qdiscs. Nothing has a name in the file system, so nothing
can be forgotten there.

(PR_SET_PDEATHSIG on the ranks would not do: it follows the *thread* that started them, and it does
not reach their children.)

Without root the keeper first makes a user namespace in which it has the privileges needed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from compressa.testbed._linux import NEW_NETWORK, NEW_USER, unshare
from compressa.testbed._processes import end_processes


def main() -> None:
    """Run the keeper: argv[1] is JSON with mark, namespaces, user_namespace and persistent.

    Prints one line of JSON: {"pid", "net_fds"}, or {"error"}.
    """
    options = json.loads(sys.argv[1])
    if options["persistent"] and os.fork():
        os._exit(0)
    try:
        if options["user_namespace"]:
            _enter_user_namespace()
        fds = [_open_network() for _ in range(options["namespaces"])]
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"pid": os.getpid(), "net_fds": fds}), flush=True)
    _close_standard_streams()
    if options["persistent"]:
        signal.pause()
    while os.read(0, 1024):
        pass
    inodes = [os.fstat(fd).st_ino for fd in fds]
    end_processes(options["mark"], inodes, spare=[os.getpid()])


def _enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    unshare(NEW_USER)
    # The kernel wants setgroups denied before an ordinary user may map a group.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _open_network() -> int:
    unshare(NEW_NETWORK)
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def _close_standard_streams() -> None:
    # A persistent keeper must not hold the terminal or a pipe of the command that started it.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


if __name__ == "__main__":
    main()
