# python -IS tests/_warm.py DOOR WORD...
"""Does what `python WORD...` does, by a process that has imported torch already.

The process that ranks are forked from forks one (`_rank_zygote`). That one takes over this one's
namespaces, streams, environment and folder. It ends if this process does, and this one as it does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

NAMESPACES = ("net", "mnt", "uts", "ipc")


def main(door: str, *words: str) -> None:
    """Have it done; return when it is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(door)
        spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
        request = {"words": words, "environment": dict(os.environ), "folder": os.getcwd()}
        socket.send_fds(link, [json.dumps(request).encode()], [0, 1, 2, *spaces])
        code = int(link.recv(16) or 1)
    if code < 0:
        if -code != signal.SIGKILL:  # which nobody can catch
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
