"""The owner's side of the keeper: starts it, enters its namespaces, lets it end."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

from compressa.errors import BackendUnavailable
from compressa.testbed._processes import MARK_VARIABLE, ProcessId, script_argv

_PATIENCE_S = 15.0


@dataclass
class Keeper:
    """A running keeper.

    Attributes:
        process: Its identity.
        net_fds: The numbers of its files of the namespaces: the bridge's, then one per host.
        child: The process to close and wait for; None if the keeper outlives this program.
    """

    process: ProcessId
    net_fds: tuple[int, ...]
    child: subprocess.Popen[str] | None

    def close(self) -> None:
        """Let the keeper end all processes of the testbed and itself."""
        if self.child is None:
            return
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        try:
            self.child.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            # It waits for a process that cannot be killed; whoever ends the record reports that.
            self.child.kill()
            self.child.wait()
        self.child.stdout.close()


def start_keeper(
    mark: str, *, namespaces: int, user_namespace: bool = False, persistent: bool = False
) -> Keeper:
    """Start a keeper with as many network namespaces as asked for.

    Args:
        mark: The testbed's id.
        namespaces: How many; 0 for one that only watches over processes.
        user_namespace: Make them inside a user namespace, which needs no root.
        persistent: Outlive this program.

    Raises:
        BackendUnavailable: The kernel does not permit it; the message has the kernel's words.
    """
    options = {
        "mark": mark,
        "namespaces": namespaces,
        "user_namespace": user_namespace,
        "persistent": persistent,
    }
    child = subprocess.Popen(
        script_argv("_keeper", json.dumps(options)),
        env={**os.environ, MARK_VARIABLE: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,
    )
    assert child.stdout is not None
    answer = json.loads(child.stdout.readline() or '{"error": "the keeper did not start"}')
    process = ProcessId.of(answer["pid"]) if "pid" in answer else None
    keeper = Keeper(process or ProcessId(child.pid, 0), tuple(answer.get("net_fds", ())), child)
    if process is None or persistent:
        keeper.close()
        keeper.child = None
    if process is None:
        raise BackendUnavailable(str(answer.get("error", "the keeper ended")))
    return keeper


def enter_argv(process: ProcessId, net_fd: int, *, user_namespace: bool) -> list[str]:
    """Give the words that, put before a command, run it inside a keeper's namespace.

    Args:
        process: The keeper.
        net_fd: Number of its file of the namespace.
        user_namespace: Whether the namespace is inside a user namespace.
    """
    words = ["nsenter", f"--net=/proc/{process.pid}/fd/{net_fd}"]
    if user_namespace:
        words[1:1] = ["--preserve-credentials", f"--user=/proc/{process.pid}/ns/user"]
    return words
