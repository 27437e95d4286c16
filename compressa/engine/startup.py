"""Start-up: own process groups, and a digest that all ranks must share."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from compressa.collectives.choice import Costs
from compressa.config import Config, first_difference
from compressa.config.sections import FIFO
from compressa.engine.control import Control
from compressa.engine.cores import Place, default_threads, has_core, launched_here, own_place
from compressa.engine.descriptors import descriptors_needed, too_few_descriptors
from compressa.engine.lanes import CudaLane, Lane
from compressa.engine.link_file import Shared
from compressa.engine.pace import host_pacer
from compressa.engine.partition import kept_bytes, partition
from compressa.engine.secret_file import read_secret, session_keys
from compressa.engine.sums import Sums
from compressa.errors import CompressaError, ConfigError, TransportError
from compressa.pacing import Pacer
from compressa.parameters import ParameterInfo
from compressa.transports.backend_sum import BackendSum
from compressa.transports.base import Transport
from compressa.transports.checks import CHECKSUMS, Keys
from compressa.transports.gloo import GlooTransport
from compressa.transports.gloo_group import GlooGroupTransport
from compressa.transports.mpi import MpiTransport
from compressa.transports.mpi_process import load, open_communicator
from compressa.transports.nccl import NcclTransport
from compressa.transports.rendezvous import connect_mesh
from compressa.transports.staged import Staged
from compressa.transports.streams import StreamSettings
from compressa.transports.tcp import TcpTransport
from compressa.transports.tcp_settings import TcpSettings, frame_sizes

_reached_epoch = 0  # the latest of this process; others may have seen more, or fewer
_CONTROL_EPOCH = 0  # nothing older can come over the sockets of a group that is new
_CONTROL_CHUNK_BYTES = 1 << 16
_PLACE, _EPOCH, _LINK = "place", "epoch", "link"
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
    plain = config.schedule.pace_bits_per_s is None and not config.exchange.authenticate
    return "nccl" if own and plain else "tcp"


def stream_settings(
    config: Config,
    epoch: int,
    chunk_bytes: int,
    window: int,
    pacer: Pacer | None = None,
    keys: Keys = CHECKSUMS,
) -> StreamSettings:
    """Return what all streams of one transport share."""
    exchange, pacer = config.exchange, pacer or Pacer(None)
    return StreamSettings(
        epoch, chunk_bytes, window, exchange.heartbeat_s, exchange.silence_s, pacer, keys
    )


def obstacle(config: Config, ranks: int) -> CompressaError | None:
    """Return what keeps this rank from speaking to the others at all, or None."""
    try:
        if config.exchange.secret_file is not None:
            read_secret(config.exchange.secret_file)
    except ConfigError as error:
        return error
    return too_few_descriptors(descriptors_needed(config, ranks))


def open_control(config: Config, group: dist.ProcessGroup) -> Control:
    """Open the control channel."""
    keys, own = session_keys(config, group), (_CONTROL_EPOCH, _CONTROL_CHUNK_BYTES, 4)
    return Control(group, stream_settings(config, *own, keys=keys.named("control")), keys)


@contextlib.contextmanager
def opening(control: Control | None, close: Callable[[], None]) -> Iterator[None]:
    """Close what has been opened if what is done meanwhile fails.

    If the network has, all raise one verdict: a rank that closed without a word would seem to be
    the cause to those who wait for longer.

    Args:
        control: The control channel; None in a world of one.
        close: Closes it, and all else.
    """
    try:
        yield
    except BaseException as error:
        told: BaseException = error
        if control is not None and isinstance(error, TransportError):
            told = control.verdict(error)
        close()
        if told is error:
            raise
        raise told from error


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


def sums_of(
    config: Config,
    transport: Transport,
    control: Control | None,
    parameters: Sequence[ParameterInfo],
) -> Sums:
    """Return what carries the rounds of this configuration's aggregators."""
    algorithm = config.exchange.algorithm
    if control is None:
        return Sums(transport, algorithm)
    # The same for ranks that reach each other without a network.
    networks = [place.network for place in control.places]
    costs = _costs(config, control)
    sizes = partition(config, parameters, costs)
    overtaking = config.schedule.policy != FIFO
    return Sums(transport, algorithm, networks, costs, sizes, overtaking=overtaking)


def _costs(config: Config, control: Control) -> Costs | None:
    return control.link.costs(config.schedule.pace_bits_per_s)


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
    pacer = host_pacer(config.schedule, control, exchange.start_wait_s)
    costs = _costs(config, control)
    chunk_bytes, credit_bytes = partition(config, parameters, costs)
    # A peer may be ahead by a step; no compressor sends more than twice the gradients.
    early_bytes = _EARLY_BYTES + 4 * sum(p.elems * max(p.dtype.itemsize, 4) for p in parameters)
    keys = control.keys.named(f"{kind} {control.epoch}")
    if kind in ("gloo", "mpi"):
        window = max(2, credit_bytes // chunk_bytes)
        streams = stream_settings(config, control.epoch, chunk_bytes, window, pacer, keys)
        if kind == "gloo":
            return GlooTransport(group, streams, early_bytes, failed)
        comm = open_communicator(
            control.rank, control.size, streams.epoch, control.all_gather, exchange.start_wait_s
        )
        return MpiTransport(comm, streams, early_bytes, failed, BackendSum(group))
    sizes = frame_sizes(chunk_bytes, credit_bytes, exchange.connections)
    poll_s = _POLL_S if has_core(control.rank, control.places, launched_here()) else 0.0
    kept = kept_bytes(config, costs)
    kept = None if kept is None else kept // exchange.connections
    settings = TcpSettings(control.epoch, *sizes, exchange.silence_s, kept, pacer, poll_s, keys)
    sockets = connect_mesh(
        control.rank,
        control.size,
        settings.epoch,
        control.all_gather,
        exchange.start_wait_s,
        exchange.connections,
        keys.named("door").secret,
    )
    own_sum = None if exchange.authenticate else BackendSum(group)
    return TcpTransport(control.rank, sockets, settings, early_bytes, failed, own_sum)
