"""Forks a process for each script that somebody asks for at a socket, by `_warm`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from _warm import NAMESPACES

_MESSAGE_BYTES = 1 << 20
_MOST_FILES = 250
_ABOVE = 300  # the numbers of all files that this process has open, and of those it is given
_READ = selectors.EVENT_READ


def warm_python(folder: Path) -> tuple[str, socket.socket]:
    """Make a program that asks for what `python` would do; return its path, and where it asks."""
    program = folder / "python"
    words = [sys.executable, "-IS", str(Path(__file__).with_name("_warm.py"))]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$0.socket" "$@"\n')
    program.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{program}.socket")
    listener.listen()
    return str(program), listener


class Scripts:
    """The scripts that run.

    Args:
        control: Whoever else this process listens to.
        listener: Where scripts are asked for.
    """

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(control, _READ)
        self._waiting.register(listener, _READ, self._start)
        self._running: set[int] = set()

    def serve(self) -> None:
        """Do it until there is something to read from `control`."""
        while True:
            for key, _ in self._waiting.select():
                if key.data is None:
                    return
                key.data(key.fileobj)

    def kill(self) -> None:
        """Kill all that run."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)

    def _start(self, listener: socket.socket) -> None:
        link = listener.accept()[0]
        data, fds, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, _MOST_FILES)
        if not data:  # it was killed before it could ask
            link.close()
            return
        pid = os.fork()
        if pid == 0:
            link.close()
            _become(**json.loads(data), fds=fds)
            sys.exit()
        for fd in fds:
            os.close(fd)
        self._running.add(pid)
        self._waiting.register(link, _READ, partial(self._left, pid))
        self._waiting.register(os.pidfd_open(pid), _READ, partial(self._ended, pid, link))

    def _left(self, pid: int, link: socket.socket) -> None:
        """Who asked for it has ended."""
        if link.fileno() < 0:  # in the same turn as what was asked for
            return
        self._waiting.unregister(link)
        os.kill(pid, signal.SIGKILL)

    def _ended(self, pid: int, link: socket.socket, ended: int) -> None:
        self._running.discard(pid)
        self._waiting.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(KeyError):  # it was, if who asked has ended
            self._waiting.unregister(link)
        with link, contextlib.suppress(BrokenPipeError):
            link.send(str(code).encode())


def _become(
    program: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    files: Sequence[int],
    fds: Sequence[int],
) -> None:
    """Run what `python WORD...` would run, as its own process."""
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for fd in fds]
    for name, fd in zip(NAMESPACES, fds, strict=False):
        if os.stat(fd).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            entered = ctypes.CDLL(None, use_errno=True).setns(fd, 0)
            assert entered == 0, os.strerror(ctypes.get_errno())
    for number, fd in zip(files, fds[len(NAMESPACES) :], strict=True):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.executable = program  # also of those that it starts
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = dict.fromkeys([*paths, *sys.path])
    _run(*[word for word in words if word != "-u"])


def _run(first: str, *words: str) -> None:
    how: dict[str, Any] = {"run_name": "__main__"}
    if first == "-m":
        sys.argv = list(words)
        runpy.run_module(words[0], **how, alter_sys=True)
    elif first == "-c":
        sys.argv = [first, *words[1:]]
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(module))
    else:
        sys.argv = [first, *words]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, **how)
