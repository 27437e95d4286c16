"""Start-up: own process groups, and a digest that all ranks must share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from compressa.config import Config, first_difference
from compressa.engine.control import Control
from compressa.engine.cores import Place, default_threads, has_core, launched_here, own_place
from compressa.engine.lanes import CudaLane, Lane
from compressa.engine.link_file import Shared
from compressa.engine.pace import host_pacer, paced_chunk_bytes
from compressa.engine.rollcall import RollCall
from compressa.engine.sums import Sums
from compressa.errors import BackendUnavailable, CompressaError, ConfigError
from compressa.pacing import Pacer
from compressa.parameters import ParameterInfo
from compressa.transports.backend_sum import BackendSum
from compressa.transports.base import Transport
from compressa.transports.connection import TcpSettings, frame_sizes
from compressa.transports.gloo import GlooTransport
from compressa.transports.gloo_group import GlooGroupTransport
from compressa.transports.mpi import MpiTransport
from compressa.transports.mpi_process import left_behind, load, open_communicator
from compressa.transports.nccl import NcclTransport
from compressa.transports.rendezvous import connect_mesh
from compressa.transports.staged import Staged
from compressa.transports.streams import StreamSettings
from compressa.transports.tcp import TcpTransport

_reached_epoch = 0  # the latest of this process; others may have seen more, or fewer
_CONTROL_EPOCH = 0  # nothing older can come over the sockets of a group that is new
_CONTROL_CHUNK_BYTES = 1 << 16
_GROUP_MARGIN_S = 0.5
_PLACE, _EPOCH, _LINK = "place", "epoch", "link"
_retired: list[dist.ProcessGroup] = []
_NCCL_PATIENCE = 4.0
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # read when a group is made
_POLL_S = 150e-6  # a small message, and what both ends do with it; a sleep costs some 50 us
_EARLY_BYTES = 1 << 20  # for headers and padding, beside what follows from the parameters


def choose_transport(config: Config, group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the transport that a configuration means for gradients on a device.

    Raises:
        ConfigError: There is no such transport there.
        BackendUnavailable: It needs what is not installed.
    """
    wanted = config.exchange.transport
    if wanted == "mpi":
        load(group.size())
    on_gpu = device.type == "cuda"
    splits = on_gpu and _would_split(group)
    if wanted == "nccl" and splits:
        raise ConfigError(
            'exchange.transport = "nccl" can not serve a part of the ranks where '
            "init_process_group was given a device_id, since torch then wants all of them to make "
            'its group; leave device_id out, or use "tcp"'
        )
    if wanted == "nccl" and not on_gpu:
        raise ConfigError(
            f'exchange.transport = "nccl" is for gradients on GPUs, and these are on the {device}; '
            'use "auto" or "tcp"'
        )
    if wanted == "nccl" and not dist.is_nccl_available():
        raise ConfigError(
            'exchange.transport = "nccl", but this torch has no NCCL; install a CUDA build of '
            'torch, or use "tcp"'
        )
    if wanted != "auto":
        return wanted
    own = on_gpu and "cuda:nccl" in dist.get_backend_config(group)
    return "nccl" if own and not splits and config.schedule.pace_bits_per_s is None else "tcp"


def _would_split(group: dist.ProcessGroup) -> bool:
    """Whether torch would split a group of NCCL off the default one, in which others are, too."""
    return _is_part(group) and getattr(dist.group.WORLD, "bound_device_id", None) is not None


def _is_part(group: dist.ProcessGroup) -> bool:
    """Whether not all ranks are in it."""
    return group.size() != dist.get_world_size()


def new_group(
    config: Config, group: dist.ProcessGroup, backend: str, caller: str
) -> dist.ProcessGroup:
    """Create a process group of the ranks of `group`, who must all do so together.

    Args:
        config: How long to wait.
        group: Of whom.
        backend: Of torch's.
        caller: The function that the user called, which an error names.

    Raises:
        Timeout: They do not, or one of them is lost.
    """
    # The engine's own deadline comes first: it knows whom it waits for.
    nccl = backend == "nccl"
    patience = _NCCL_PATIENCE if nccl else 1.0
    timeout = timedelta(seconds=patience * config.exchange.deadline_s + _GROUP_MARGIN_S)
    _bury_retired()
    device = torch.cuda.current_device() if nccl else None

    def create() -> dist.ProcessGroup:
        with contextlib.ExitStack() as stack:
            if device is not None:
                stack.enter_context(torch.cuda.device(device))  # each thread has one of its own
                stack.enter_context(_left_alone_by_torch())
            made: dist.ProcessGroup = dist.new_group(
                dist.get_process_group_ranks(group),
                timeout=timeout,
                backend=backend,
                pg_options=_nccl_options(timeout) if nccl else None,
                use_local_synchronization=_is_part(group),
            )
        return made

    return RollCall(group, patience * config.exchange.deadline_s, caller).together(create)


@contextlib.contextmanager
def _left_alone_by_torch() -> Iterator[None]:
    """Have torch not end the process when a group that is made now fails.

    The engine sees to that: it aborts the group, and the user gets an error to act upon.
    """
    before = os.environ.get(_ERROR_HANDLING)
    os.environ[_ERROR_HANDLING] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ERROR_HANDLING]
        else:
            os.environ[_ERROR_HANDLING] = before


def _nccl_options(timeout: timedelta) -> Any:
    """Exchanges go before the kernels of backward, as what is exchanged does."""
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    options._timeout = timeout  # torch warns if it is not the same in both places
    return options


def release_groups(groups: list[dist.ProcessGroup]) -> None:
    """Give the groups' threads and sockets back, and empty the list.

    All that used them must have ended.
    """
    while groups:
        _retire(groups.pop())
    _bury_retired()


def give_up(config: Config, groups: list[dist.ProcessGroup], error: BaseException) -> None:
    """Give back the groups of an opening that has failed."""
    alike = isinstance(error, ConfigError | BackendUnavailable)  # on every rank
    if config.exchange.transport == "mpi" and not alike:
        left_behind()  # whoever is lost will not come to MPI's end either
    release_groups(groups)


def _retire(group: dist.ProcessGroup) -> None:
    # The user may have destroyed all groups already. A sub-group is named after its ranks and how
    # many groups are known. So it stays known, and another in place of one that is destroyed:
    # no name comes twice, nor differs because some rank has not closed yet.
    known = dist.distributed_c10d._world.pg_names
    stand_in: Any = dist.ProcessGroup  # which mypy thinks needs a store
    with contextlib.suppress(ValueError, KeyError):
        if not _is_part(group):
            name = known[group]
            dist.destroy_process_group(group)
            known[stand_in(0, 1)] = name
    _retired.append(group)


def _bury_retired() -> None:
    """Let go of retired groups that nothing else refers to.

    A group joins its threads when its last reference goes, and aborts the process if that
    happens on one of them, at the end of a callback. So the last one is kept here.
    """
    idle_references = 3  # the list's, the loop's, the argument's
    _retired[:] = [group for group in _retired if sys.getrefcount(group) > idle_references]


def stream_settings(
    config: Config,
    epoch: int,
    chunk_bytes: int,
    window: int,
    pacer: Pacer | None = None,
) -> StreamSettings:
    """Return what all streams of one transport share."""
    exchange, pacer = config.exchange, pacer or Pacer(None)
    return StreamSettings(
        epoch, chunk_bytes, window, exchange.heartbeat_s, exchange.silence_s, pacer
    )


def open_control(config: Config, group: dist.ProcessGroup) -> Control:
    """Open the control channel."""
    return Control(group, stream_settings(config, _CONTROL_EPOCH, _CONTROL_CHUNK_BYTES, 4))


def digest(
    config: Config | None,
    error: str | None,
    parameters: Sequence[ParameterInfo],
    transport: str | None,
) -> dict[str, Any]:
    """Return what every rank must agree on before the first step."""
    return {
        "error": error,
        "library": {
            "compressa": version("compressa"),
            "torch": torch.__version__.split("+")[0],
            **(config.plugin_versions() if config is not None else {}),
        },
        "configuration": config.canonical() if config is not None else None,
        "transport": transport,
        "parameters": {
            p.name: {"index": p.index, "shape": list(p.shape), "dtype": str(p.dtype)}
            for p in parameters
        },
        "roles": {p.name: p.role.value for p in parameters},
    }


def agree(
    control: Control,
    own: dict[str, Any],
    deadline_s: float,
    link: Mapping[str, Any] | None = None,
) -> None:
    """Compare all ranks' digests; and learn where the ranks run, which may differ.

    They also agree on the next epoch: a rank that joins others has seen fewer.

    Args:
        control: The control channel; told what was learnt.
        own: This rank's digest.
        deadline_s: Longest wait.
        link: What this rank says of the network (`compressa.engine.link_file`); rank 0's counts.

    Raises:
        ConfigError: They differ, or a rank has none; on every rank, with the first difference.
    """
    next_epoch = _reached_epoch + 1
    about = {_PLACE: own_place().message(), _EPOCH: next_epoch, _LINK: link}
    message = json.dumps({**own, **about})
    texts = control.all_gather(message.encode(), "start-up digest", deadline_s)
    digests = [json.loads(text) for text in texts]
    places = [digest.pop(_PLACE, None) for digest in digests]
    epochs = [digest.pop(_EPOCH, 0) for digest in digests]
    links = [digest.pop(_LINK, None) for digest in digests]
    for rank, other in enumerate(digests):
        if other["error"] is not None and rank != control.rank:
            raise ConfigError(f"rank {rank} cannot start: {other['error']}")
    for rank, other in enumerate(digests):
        difference = first_difference(digests[0], other)
        if difference is not None:
            path, first, value = difference
            raise ConfigError(
                f"the ranks differ in {path}: rank 0 has {first!r}, rank {rank} has {value!r}; "
                "start all ranks with the same configuration, model and library versions"
            )
    control.places = [Place.of(place) for place in places]
    control.link = Shared.of(links[0])
    control.epoch = _reach(max(epochs))


def _reach(epoch: int) -> int:
    global _reached_epoch
    _reached_epoch = max(_reached_epoch, epoch)  # another thread may have come further
    return epoch


def threads_of(control: Control | None) -> int:
    """Return how many threads encode and decode on this rank, which may share its host."""
    rank, places = (0, [own_place()]) if control is None else (control.rank, control.places)
    return default_threads(rank, places, launched_here())


def sums_of(config: Config, transport: Transport, control: Control | None) -> Sums:
    """Return what carries the rounds of this configuration's aggregators."""
    algorithm = config.exchange.algorithm
    if control is None:
        return Sums(transport, algorithm)
    # The same for ranks that reach each other without a network.
    networks = [place.network for place in control.places]
    costs = control.link.costs(config.schedule.pace_bits_per_s)
    return Sums(transport, algorithm, networks, costs)


def agree_on_order(
    control: Control, step: int, ordered: Sequence[tuple[int, int]], deadline_s: float
) -> None:
    """Compare the order in which all ranks will launch from a step on.

    A backend without named messages would sum unrelated tensors, or abort the process.

    Raises:
        ConfigError: They differ; on every rank.
    """
    text = json.dumps([step, ordered]).encode()
    own = hashlib.sha256(text).hexdigest().encode()
    orders = control.all_gather(own, "plan", deadline_s)
    for rank, order in enumerate(orders):
        if order != orders[0]:
            raise ConfigError(
                f"rank {rank} plans step {step} in another order than rank 0: the ranks' plans "
                "differ; train the same steps of the same model on every rank"
            )


def open_transport(
    config: Config,
    group: dist.ProcessGroup,
    control: Control,
    parameters: Sequence[ParameterInfo],
    failed: Callable[[CompressaError], None],
    kind: str,
    lane: Lane,
) -> Transport:
    """Open what carries payloads; every rank must do so together.

    Args:
        config: Sizes and times.
        group: A process group of its own: of NCCL for the transport "nccl", else of Gloo.
        control: The control channel.
        parameters: The model's.
        failed: Called once, from any thread, when a peer is lost or sends nonsense.
        kind: From `choose_transport`.
        lane: Where payloads are made.
    """
    if not isinstance(lane, CudaLane):
        return _open_on_host(config, group, control, parameters, failed, kind)
    if kind == "nccl":
        deadline_s = config.exchange.deadline_s
        return NcclTransport(group, control.epoch, lane.stream, deadline_s, failed, control.part)
    return Staged(_open_on_host(config, group, control, parameters, failed, kind), lane.stream)


def _open_on_host(
    config: Config,
    group: dist.ProcessGroup,
    control: Control,
    parameters: Sequence[ParameterInfo],
    failed: Callable[[CompressaError], None],
    kind: str,
) -> Transport:
    exchange = config.exchange
    if kind == "gloo-group":
        return GlooGroupTransport(group, control.epoch)
    pacer = host_pacer(config.schedule, control, exchange.deadline_s)
    chunk_bytes = paced_chunk_bytes(config.schedule, exchange.chunk_bytes)
    # A peer may be ahead by a step; no compressor sends more than twice the gradients.
    early_bytes = _EARLY_BYTES + 4 * sum(p.elems * max(p.dtype.itemsize, 4) for p in parameters)
    if kind in ("gloo", "mpi"):
        window = max(2, exchange.credit_bytes // chunk_bytes)
        streams = stream_settings(config, control.epoch, chunk_bytes, window, pacer)
        if kind == "gloo":
            return GlooTransport(group, streams, early_bytes, failed)
        comm = open_communicator(
            control.rank, control.size, streams.epoch, control.all_gather, exchange.deadline_s
        )
        return MpiTransport(comm, streams, early_bytes, failed, BackendSum(group))
    sizes = frame_sizes(chunk_bytes, exchange.credit_bytes, exchange.connections)
    poll_s = _POLL_S if has_core(control.rank, control.places, launched_here()) else 0.0
    settings = TcpSettings(control.epoch, *sizes, exchange.silence_s, pacer, poll_s)
    sockets = connect_mesh(
        control.rank,
        control.size,
        settings.epoch,
        control.all_gather,
        exchange.deadline_s,
        exchange.connections,
    )
    return TcpTransport(control.rank, sockets, settings, early_bytes, failed, BackendSum(group))
