"""What MPI knows of this process: that it is there, what it allows, how it ends; and communicators.

MPI is initialised when `mpi4py.MPI` is first imported, here or by the user. Where it is done here,
it is ended here as well, when the interpreter exits, and only if nothing has failed: `MPI_Finalize`
waits for all ranks that were started, and so for a dead one for ever.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressa.errors import BackendUnavailable, ConfigError, Timeout

if TYPE_CHECKING:
    from mpi4py import MPI

_END_S = 5
_SAID_BYTES = 500
_BETWEEN_LOOKS_S = 2e-3
_SHARED = "/dev/shm/mpich_shm_"

_AllGather = Callable[[bytes, str, float], list[bytes]]


class _Ending:
    """How this process will leave MPI."""

    own = False  # whether MPI was initialised here, and so is ended here
    unclean = False  # whether a rank was lost, or something cannot be ended any more
    in_use = 0  # communicators, which notice a loss
    registered = False


def load(size: int) -> Any:
    """Initialise MPI, unless it has been; return the module `mpi4py.MPI`.

    Args:
        size: Number of ranks of the model's process group.

    Raises:
        BackendUnavailable: There is no MPI in this process, or it does not allow threads.
        ConfigError: Not so many processes were started by MPI.
    """
    if "mpi4py.MPI" not in sys.modules:
        _refuse_inherited()
        _refuse_part(size)
    mpi = _imported()
    if not mpi.Is_initialized() or mpi.Is_finalized():
        raise BackendUnavailable(
            "MPI is not running in this process; leave mpi4py.rc.initialize alone, or call "
            "MPI.Init_thread() before register_comm_hook, MPI.Finalize() after the handle's close"
        )
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise BackendUnavailable(
            "MPI was initialised for one thread only, and compressa calls it from another; leave "
            'mpi4py.rc.thread_level at "multiple", or set it to "serialized" at least'
        )
    if mpi.COMM_WORLD.size < size:
        raise ConfigError(
            f"MPI counts {mpi.COMM_WORLD.size} here where the model's process group has {size} "
            f'ranks; start them as "mpiexec -n {size} python ...", or use another '
            "exchange.transport"
        )
    return mpi


def _imported() -> Any:
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        _Ending.own = mpi4py.rc.finalize is not True
        if _Ending.own:
            mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            f'mpi4py finds no MPI ({str(error).splitlines()[0]}): pip install "compressa[mpi]", or '
            "install your system's"
        ) from error
    if not _Ending.registered:
        _Ending.registered = True
        atexit.register(_end, MPI)
    return MPI


def _refuse_inherited() -> None:
    """MPICH ends a process that has the variables of its launcher, but not the connection to it.

    Raises:
        BackendUnavailable: This is such a process: something else stands between.
    """
    text = os.environ.get("PMI_FD")
    if text is None:
        return
    try:
        os.fstat(int(text))
    except (OSError, ValueError):
        raise BackendUnavailable(
            "this process has variables of mpiexec (PMI_FD), but was not started by it: a launcher "
            "such as torchrun stands between; have mpiexec start the ranks themselves"
        ) from None


def _refuse_part(size: int) -> None:
    """MPI is initialised by all processes of a job together, so a part of them would wait for ever.

    Raises:
        ConfigError: Some ranks of this job are not in the model's process group.
    """
    count = os.environ.get("PMI_SIZE", "")
    if count.isdecimal() and int(count) > size:
        raise ConfigError(
            f"the model's process group has {size} of the {count} ranks that mpiexec has started, "
            'and MPI begins on all of them together: have every rank "import mpi4py.MPI" first'
        )


def gather_all(mpi: Any, mine: bytes, deadline_s: float) -> list[bytes]:
    """Bring a few bytes of every process of the job to all.

    Args:
        mpi: The module `mpi4py.MPI`.
        mine: At most 500.
        deadline_s: Longest wait.

    Raises:
        Timeout: Some process did not come.
    """
    world, size = mpi.COMM_WORLD, _SAID_BYTES
    told = bytearray(size * world.size)
    request = world.Iallgather(bytearray(mine.ljust(size, b"\0")), told)
    end_s = time.monotonic() + deadline_s
    while not request.Test():
        if time.monotonic() > end_s:
            left_behind()
            raise Timeout((), f"not all ranks of mpiexec came to this within {deadline_s:g} s")
        time.sleep(_BETWEEN_LOOKS_S)
    return [bytes(told[at : at + size]).rstrip(b"\0") for at in range(0, len(told), size)]


def left_behind() -> None:
    """Note that a rank was lost, or that something in MPI can not be ended any more.

    The process then ends without `MPI_Finalize`, which would wait for it. From any thread.
    """
    _Ending.unclean = True


def start_failed(*, met: bool) -> None:
    """Note that some ranks did not get through a start, and may be lost.

    Args:
        met: Whether all ranks had come to it. Where they had not, and another communicator is in
            use, nothing follows: that one would notice a loss, so who is missing is elsewhere.
    """
    if met or not _Ending.in_use:
        left_behind()


def released() -> None:
    """Note that a communicator that `open_communicator` made is in use no more."""
    _Ending.in_use -= 1


def _end(mpi: Any) -> None:
    """At the interpreter's exit: leave MPI in a way that waits for nobody who is gone."""
    if mpi.Is_finalized():
        return
    # After an error that nobody caught, the others will hear of a lost rank, and not come either.
    if not _Ending.unclean and not hasattr(sys, "last_type"):
        if _Ending.own:
            mpi.Finalize()
        return
    _forget_shared_memory()
    if not _Ending.own and hasattr(signal, "SIGALRM"):
        # mpi4py will call MPI_Finalize after all code in Python has ended.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_END_S)


def _forget_shared_memory() -> None:
    """Remove MPICH's files in shared memory, as finalizing would; who needs them has them open."""
    maps = Path("/proc/self/maps")
    with contextlib.suppress(OSError):
        for line in maps.read_text(encoding="utf-8").splitlines():
            _, found, name = line.partition(_SHARED)
            if found:
                Path(_SHARED + name.split()[0]).unlink(missing_ok=True)


def open_communicator(
    rank: int, size: int, epoch: int, all_gather: _AllGather, deadline_s: float
) -> MPI.Intracomm:
    """Create a communicator whose ranks are those of the model's process group, in its order.

    Args:
        rank: This rank.
        size: Number of ranks.
        epoch: Epoch of the transport that it is for.
        all_gather: Brings every rank's bytes to every rank.
        deadline_s: Longest wait.

    Raises:
        ConfigError: The ranks are not processes of one MPI job.
        Timeout: Some rank did not come.
    """
    mpi = load(size)
    world = mpi.COMM_WORLD
    texts = all_gather(json.dumps([world.rank, world.size]).encode(), "rank in MPI", deadline_s)
    processes = [tuple(json.loads(text)) for text in texts]
    if len({own for own, _ in processes}) < size or len({count for _, count in processes}) > 1:
        said = ", ".join(f"{own} of {count}" for own, count in processes)
        raise ConfigError(
            f"the ranks are in MPI, in this order: {said}; one mpiexec must start all of them"
        )
    made: list[MPI.Intracomm] = []

    def create() -> None:
        group = world.Get_group().Incl([own for own, _ in processes])
        # The tag keeps apart what is created at the same time for other groups of the ranks.
        made.append(world.Create_group(group, epoch % 32768))
        group.Free()

    _within(create, deadline_s)
    comm = made[0]
    comm.Set_errhandler(mpi.ERRORS_RETURN)
    assert (comm.rank, comm.size) == (rank, size)
    _Ending.in_use += 1
    return comm


def _within(call: Callable[[], None], deadline_s: float) -> None:
    """Make a call that may block, and that nothing can end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="compressa-mpi-start", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        left_behind()
        raise Timeout(
            (),
            f"MPI made no communicator within {deadline_s:g} s: a rank was lost meanwhile, or is "
            "of another job; this process can not use MPI any more",
        )
    if failures:
        raise BackendUnavailable(f"MPI made no communicator: {failures[0]}") from failures[0]
