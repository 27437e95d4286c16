# python -IS tests/_warm.py DOOR WORD...
"""Does what `python WORD...` does, by a process that has imported torch already.

The process that ranks are forked from forks one (`_scripts`). That one takes over this one's
namespaces, open files, environment and folder. It ends if this process does, and this one as it
does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

NAMESPACES = ("net", "mnt", "uts", "ipc")


def inherited() -> list[int]:
    """Return the numbers of all files that are open: a launcher may have left more than three."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # it was that folder
            os.fstat(number)
            found.append(number)
    return found


def main(path: str, *words: str) -> None:
    """Have it done; end as it ends."""
    if words[0] == "-I":  # a Python that is to see nothing of others
        os.execv(sys.executable, [sys.executable, *words])
    files = inherited()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(path)
        spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
        request = {
            "program": path.removesuffix(".socket"),
            "words": words,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "files": files,
        }
        socket.send_fds(link, [json.dumps(request).encode()], [*spaces, *files])
        code = int(link.recv(16) or 1)
    if code < 0:
        if -code != signal.SIGKILL:  # which nobody can catch
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
