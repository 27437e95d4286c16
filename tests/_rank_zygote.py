"""The process that every rank of a test is forked from.

Importing torch costs seconds, and four times that on four ranks. This process imports once,
starts no thread, and forks a rank when it is told to, so that a test can have fresh processes
for a few milliseconds. Its requests and answers are JSON on a socket; a fork request carries the
rank's own socket and its stderr. When the socket closes, all ranks are killed and it ends.
A rank is sent calls of functions, pickled, and answers with JSON.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from _scripts import Scripts
from _transports import add_own
from compressa.kernels import compile

from compressa.config import load_config
from compressa.transports.lowered.compile import prepare

MESSAGE_BYTES = 1 << 20
_SOURCES = ("", str(Path(__file__).resolve().parents[1]))
_PRELOADED = (
    "torch._dynamo",  # DistributedDataParallel imports it when it is first used
    "torch._dynamo.backends.debugging",
    "torch._inductor.compile_fx",
    "torch.onnx",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
    "compressa.config",
    "compressa.hooks",
    "compressa.optim",
    "compressa.overlap",
    "compressa.parameter_server",
    "compressa.strategies",
    "numba",
    "safetensors.torch",
    "pytest",  # which test modules import
    "hypothesis",
    "_failing",
    "_mass",
    "_ranks",
    "_training",
)


def main() -> None:
    """Serve requests until the socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = json.loads(sys.argv[2])
    torch.set_num_threads(1)
    compile.load_all()  # loads every kernel, so that no rank has to
    prepare()  # and sums by transports
    load_config({})  # builds the models of all sections
    control.send(json.dumps(_preloaded(_PRELOADED)).encode())
    running: set[int] = set()
    scripts = Scripts(control, socket.socket(fileno=int(sys.argv[3])))
    while True:
        scripts.serve()
        data, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
        if not data:
            break
        request = json.loads(data)
        if request["do"] == "fork":
            pid = os.fork()
            if pid == 0:
                control.close()
                _serve(*fds)
                return
            for fd in fds:
                os.close(fd)
            running.add(pid)
            answer: Any = pid
        elif request["do"] == "import":
            answer = _preloaded(request["modules"])
        else:
            answer = _exit_code(request["pid"], running)
        control.send(json.dumps(answer).encode())
    scripts.kill()
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _preloaded(names: Iterable[str]) -> dict[str, int]:
    """Import modules; return how many threads there are.

    This project's own folder is not on the path meanwhile: transformers would take `kernels` in it
    for a package that it knows.
    """
    with mock.patch.object(sys, "path", [entry for entry in sys.path if entry not in _SOURCES]):
        for name in names:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a rank's collector would copy every page that it touches
    return {"threads": len(os.listdir("/proc/self/task"))}


def _exit_code(pid: int, running: set[int]) -> int | None:
    """Return a rank's exit code, negative for a signal; None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done:
        return None
    running.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _serve(link_fd: int, stderr_fd: int) -> None:
    """In a rank: call functions until the socket closes.

    Returning ends the process the ordinary way, through the interpreter's own exit.
    """
    os.dup2(stderr_fd, 1)
    os.dup2(stderr_fd, 2)
    os.close(stderr_fd)
    faulthandler.enable()  # a crash says where
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.filterwarnings("error", module="compressa")
    serve(socket.socket(fileno=link_fd))


def serve(link: socket.socket) -> None:
    """Answer requests until the socket closes."""
    add_own()
    while data := link.recv(MESSAGE_BYTES):
        function, arguments, uncaught = pickle.loads(data)
        if uncaught:
            function(**arguments)
            return
        link.send(json.dumps(_call(function, arguments)).encode())


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    started_s = time.monotonic()
    answer: dict[str, Any] = {"value": None, "error": None}
    try:
        answer["value"] = function(**arguments)
    except BaseException as error:  # the rank lives on, and the test judges
        answer["error"] = {
            "type": type(error).__name__,
            "bases": [base.__name__ for base in type(error).__mro__],
            "message": str(error),
            "rank": getattr(error, "rank", None),
            "ranks": getattr(error, "ranks", None),
            "traceback": traceback.format_exc(),
        }
    answer["seconds"] = time.monotonic() - started_s
    return answer


if __name__ == "__main__":
    main()
