"""Compiled kernels on disk: where they are, and who compiles them.

Compiled code is kept in a folder (see `compressa.kernels.cpu._cache`). What is compiled under this
module's lock is compiled by one process of a host: the others wait, and load what it left.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ._backends import KernelUnavailable

PATIENCE_S = 600.0
"""For another host that compiles; a rank that is lost meanwhile is noticed."""

_LOOK_S = 0.01
_LONG_S = 2.0
_log = logging.getLogger(__name__)


@contextmanager
def one_at_a_time(path: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Return a context that one process of a host is in at a time.

    The lock is a file, which the system releases when its holder ends, however it ends.

    Args:
        path: Of the file.
        patience_s: Longest wait for the others, one of which may be stopped.

    Raises:
        KernelUnavailable: One of them has not ended by then.
        OSError: The file can not be written.
    """
    end_s = time.monotonic() + patience_s
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise KernelUnavailable(
                        f"another process has been compiling kernels for {patience_s:g} s; end it "
                        f"if it hangs: it holds {path}"
                    ) from None
                time.sleep(_LOOK_S)
        yield


def compile_once(what: str, work: Callable[[], object], lock: str = "compressa") -> None:
    """Have the first process of a host compile kernels, and all others load them.

    The lock is beside the compiled code. Where nothing can be written, every process compiles for
    itself. What takes longer than a moment is told in the log.

    Args:
        what: What `work` compiles: the same text for the same kernels.
        work: Calls the kernels; in every process, whether it compiles or loads.
        lock: One process at a time holds the lock of this name. What is compiled while a deadline
            runs has one of its own, so that it waits for nothing long.

    Raises:
        KernelUnavailable: Another process does not come to an end; the message names the fix.
    """
    folder = _folder()
    if folder is None:
        with _told("again in each process, since no folder can be written"):
            work()
        return
    mark = folder / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}-{_identity()}.compiled"
    if not mark.exists():
        with one_at_a_time(folder / f"{lock}.lock"):
            if not mark.exists():
                with _told(f"once for this machine and version; they are kept in {folder}"):
                    work()
                mark.touch()
                return
    work()


@contextmanager
def _told(how_often: str) -> Iterator[None]:
    """Say in the log what is being waited for, once it takes long."""
    text = "compressa compiles its kernels for this processor, %s"
    timer = threading.Timer(_LONG_S, _log.warning, (text, how_often))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _folder() -> Path | None:
    """The folder that compiled code goes to; None if there is none."""
    from .cpu._cache import KernelCache  # numba is imported when kernels are needed

    found = KernelCache(compile_once).cache_path
    return None if found is None else Path(found)


@cache
def _identity() -> str:
    """What compiled code is for: numba's version, this processor, and the kernels' sources."""
    import numba
    from numba.core.registry import cpu_target

    processor = repr(cpu_target.target_context.codegen().magic_tuple())
    digest = hashlib.sha256(f"{numba.__version__} {processor}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
