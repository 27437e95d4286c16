"""The owner's side of the delay line: starts it and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence

from compressa.errors import BackendUnavailable
from compressa.testbed._processes import MARK_VARIABLE, ProcessId, script_argv
from compressa.testbed.link import LinkSpec

_PATIENCE_S = 15.0


def start_line(
    enter: Sequence[str], mark: str, devices: Sequence[str], link: LinkSpec
) -> ProcessId:
    """Start a process that carries frames between devices, each after the link's delay.

    It carries the testbed's mark and sits in a namespace of it, by which it is ended with it.

    Args:
        enter: The words that run a command in the bridge's namespace.
        mark: The testbed's id.
        devices: The bridge's ends of the links.
        link: With a delay.

    Raises:
        BackendUnavailable: The kernel does not permit it; the message has its words.
    """
    options = {"delay_s": link.delay_s, "devices": devices, "queue_bytes": link.queue_bytes}
    try:
        done = subprocess.run(
            [*enter, *script_argv("_delay", json.dumps(options))],
            env={**os.environ, MARK_VARIABLE: mark},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            start_new_session=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailable(f"The delay line did not start in {_PATIENCE_S:g} s.") from error
    line = ProcessId.of(int(done.stdout)) if done.returncode == 0 else None
    if line is None:
        raise BackendUnavailable(
            f"Links cannot be delayed here ({done.stderr.strip() or 'the line ended'}); the kernel "
            "needs packet sockets (CONFIG_PACKET), and this user root or user namespaces. Without "
            f'a delay the link is "{str(link).partition("+")[0]}".'
        )
    return line


def end_line(line: ProcessId | None) -> None:
    """End a delay line, if it runs; what it holds is lost."""
    if line is not None and line.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(line.pid, signal.SIGKILL)
