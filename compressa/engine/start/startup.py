"""Start-up: the channels, and a digest that all ranks must share."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from compressa.collectives.choice import Costs
from compressa.config import Config, first_difference
from compressa.engine.control.control import Control
from compressa.engine.device_stream import CudaDeviceStream, DeviceStream
from compressa.engine.start import process_groups
from compressa.engine.start.cores import Host, default_threads, has_core, launched_here, own_host
from compressa.engine.start.descriptors import descriptors_needed, too_few_descriptors
from compressa.engine.start.link_file import AgreedLink
from compressa.engine.start.pace import host_pacer
from compressa.engine.start.secret_file import read_secret, session_keys
from compressa.engine.start.store_gather import all_gather_by
from compressa.engine.units.partition import kept_bytes, partition
from compressa.engine.units.sums import Sums
from compressa.errors import CompressaError, ConfigError
from compressa.pacing import Pacer
from compressa.parameters import ParameterInfo
from compressa.transports.base import Transport
from compressa.transports.checks import Keys
from compressa.transports.rendezvous import connect_mesh
from compressa.transports.settings import Settings
from compressa.transports.setup import Setup
from compressa.transports.staged import Staged
from compressa.transports.table import AUTO, TRANSPORTS, Entry, meant

_reached_epoch = 0  # the latest of this process; others may have seen more, or fewer
_CONTROL_EPOCH = 0  # nothing older can come over sockets that are new
_CONTROL_CHUNK_BYTES = 1 << 16
_CONTROL_CREDIT_BYTES = 4 * _CONTROL_CHUNK_BYTES
_HOST, _EPOCH, _LINK = "host", "epoch", "link"
_POLL_S = 150e-6  # a small message, and what both ends do with it; a sleep costs some 50 us
_EARLY_BYTES = 1 << 20  # for headers and padding, beside what follows from the parameters


def choose_transport(config: Config, group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the transport that a configuration means for gradients on a device.

    Args:
        config: Names one, or "auto".
        group: The model's; "auto" goes by its backends.
        device: Of the gradients.

    Returns:
        A name of `TRANSPORTS`.

    Raises:
        ConfigError: There is no such transport there.
        BackendUnavailable: It needs what is not installed.
    """
    choice = config.exchange.transport
    if choice == AUTO:
        return next(row.name for row in meant(choice) if _fits(row, config, group, device))
    TRANSPORTS[choice].check(device, group.size())
    return choice


def _fits(row: Entry, config: Config, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether a transport that nobody has asked for can do what is asked of any."""
    if row.device and row.device != device.type:
        return False
    if row.device and f"{row.device}:{row.backend}" not in dist.get_backend_config(group):
        return False  # whoever made the model's group did not want that backend there
    if row.device and config.exchange.entropy_level:
        return False  # payloads go by way of the host then
    if config.schedule.pace_bits_per_s is not None and not row.paced:
        return False
    return row.authenticated or not config.exchange.authenticate


def obstacle(config: Config, ranks: int) -> CompressaError | None:
    """Return what keeps this rank from speaking to the others at all, or None.

    That is a secret that can not be read (`ConfigError`), or too few files that may be open
    (`TransportError`).

    Args:
        config: The configuration.
        ranks: Number of ranks.
    """
    try:
        if config.exchange.secret_file is not None:
            read_secret(config.exchange.secret_file)
    except ConfigError as error:
        return error
    return too_few_descriptors(descriptors_needed(config, ranks))


def open_control(
    config: Config,
    group: dist.ProcessGroup,
    caller: str,
    failure: CompressaError | None = None,
) -> Control:
    """Open the control channel; all ranks must do so together.

    Args:
        config: Sizes and times; says whether frames are authenticated.
        group: Who takes part. They find each other through torch's store.
        caller: The function that the user called, which an error names.
        failure: Why this rank can not after all, which the others are told.

    Raises:
        Timeout: They do not, or one of them is lost.
        TransportError: One of them can not, and says why.
        CompressaError: The failure that was given.
    """
    exchange = config.exchange
    call = process_groups.call_of_all(group, exchange.start_wait_s, caller)

    def connect(name: str, store: Store) -> tuple[Keys, dict[int, list[socket.socket]]]:
        all_gather = all_gather_by(store, call.rank, call.size)
        keys = session_keys(config, call.rank, all_gather)
        return keys, connect_mesh(
            call.rank,
            call.size,
            _CONTROL_EPOCH,
            all_gather,
            exchange.start_wait_s,
            secret=keys.named("control handshake").secret,
        )

    keys, sockets = call.run(connect, failure)
    settings = Settings(
        _CONTROL_EPOCH,
        _CONTROL_CHUNK_BYTES,
        _CONTROL_CREDIT_BYTES,
        exchange.silence_s,
        exchange.heartbeat_s,
        alive=True,
        keys=keys.named("control"),
    )
    return Control(call.rank, sockets, settings, keys)


def digest(
    config: Config | None,
    error: str | None,
    parameters: Sequence[ParameterInfo],
    transport: str | None,
) -> dict[str, Any]:
    """Return what every rank must agree on before the first step, as JSON.

    Args:
        config: The configuration; None if it could not be read.
        error: Why this rank can not take part; None if it can.
        parameters: The model's, in its order.
        transport: From `choose_transport`; None if there is none.
    """
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
        link: What this rank says of the network (`compressa.engine.start.link_file`); rank 0's
            counts.

    Raises:
        ConfigError: They differ, or a rank has none; on every rank, with the first difference.
    """
    next_epoch = _reached_epoch + 1
    about = {_HOST: own_host().message(), _EPOCH: next_epoch, _LINK: link}
    message = json.dumps({**own, **about})
    texts = control.all_gather(message.encode(), "start-up digest", deadline_s)
    digests = [json.loads(text) for text in texts]
    hosts = [digest.pop(_HOST, None) for digest in digests]
    epochs = [digest.pop(_EPOCH, 0) for digest in digests]
    links = [digest.pop(_LINK, None) for digest in digests]
    for rank, other in enumerate(digests):
        if other["error"] is not None and rank != control.rank:
            raise ConfigError(f"rank {rank} cannot start: {other['error']}")
    fix = "start all ranks with the same configuration, model and library versions"
    check_alike(digests, "", fix)
    control.hosts = [Host.of(host) for host in hosts]
    control.link = AgreedLink.of(links[0])
    control.epoch = _reach(max(epochs))


def check_alike(told: Sequence[object], whose: str, fix: str) -> None:
    """Compare what all ranks have told.

    Args:
        told: By rank, as JSON.
        whose: Said of what differs; may be empty.
        fix: What the user can do about it.

    Raises:
        ConfigError: They differ; with the first difference.
    """
    for rank, other in enumerate(told):
        difference = first_difference(told[0], other)
        if difference is not None:
            path, first, value = difference
            raise ConfigError(
                f"the ranks differ in {whose}{path}: rank 0 has {first!r}, rank {rank} has "
                f"{value!r}; {fix}"
            )


def _reach(epoch: int) -> int:
    global _reached_epoch
    _reached_epoch = max(_reached_epoch, epoch)  # another thread may have come further
    return epoch


def threads_of(control: Control | None) -> int:
    """Return how many threads encode and decode on this rank, which may share its host.

    Args:
        control: Knows where all ranks run; None in a world of one.
    """
    rank, hosts = (0, [own_host()]) if control is None else (control.rank, control.hosts)
    return default_threads(rank, hosts, launched_here())


def sums_of(
    config: Config,
    transport: Transport,
    control: Control | None,
    parameters: Sequence[ParameterInfo],
) -> Sums:
    """Return what carries the rounds of this configuration's aggregators.

    Args:
        config: Names the algorithm, and sizes.
        transport: Carries the exchanges.
        control: Knows where the ranks run, and the link; None in a world of one.
        parameters: The model's; chunks go by them where none are configured.
    """
    algorithm = config.exchange.algorithm
    if control is None:
        return Sums(transport, algorithm)
    # The same for ranks that reach each other without a network.
    networks = [host.network for host in control.hosts]
    costs = _costs(config, control)
    sizes = partition(config, parameters, costs)
    overtaking = config.schedule.overtaking
    return Sums(transport, algorithm, networks, costs, sizes, overtaking=overtaking)


def _costs(config: Config, control: Control) -> Costs | None:
    return control.link.costs(config.schedule.pace_bits_per_s)


def agree_on_order(
    all_gather: Callable[[bytes, str], list[bytes]], step: int, ordered: Sequence[tuple[int, int]]
) -> None:
    """Compare the order in which all ranks will launch from a step on. Collective.

    A backend without named messages would sum unrelated tensors, or abort the process.

    Args:
        all_gather: Brings bytes, for a purpose, of every rank to every rank.
        step: The first step of the order.
        ordered: (unit, stage) of what is launched in one order.

    Raises:
        ConfigError: They differ; on every rank.
    """
    text = json.dumps([step, ordered]).encode()
    own = hashlib.sha256(text).hexdigest().encode()
    orders = all_gather(own, "plan")
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
    device_stream: DeviceStream,
    *,
    shared: bool = False,
) -> Transport:
    """Open what carries payloads; every rank must do so together.

    Args:
        config: Sizes and times.
        group: A process group of the backend that the row names.
        control: The control channel.
        parameters: The model's.
        failed: Called once, from any thread, when a peer is lost or sends nonsense.
        kind: From `choose_transport`.
        device_stream: Where payloads are made.
        shared: Whether the group is the model's; else it is the transport's own.

    Returns:
        It, with stages to and from a GPU around it if it needs them.

    Raises:
        TransportError: A rank did not come in time, or can not be reached.
        ConfigError: The ranks do not agree.
    """
    row = TRANSPORTS[kind]
    stream = device_stream.stream if isinstance(device_stream, CudaDeviceStream) else None
    setup = _setup(config, group, control, parameters, failed, row, stream)
    transport = row.open(replace(setup, shared=shared))
    return transport if stream is None or row.device else Staged(transport, stream)


def _setup(
    config: Config,
    group: dist.ProcessGroup,
    control: Control,
    parameters: Sequence[ParameterInfo],
    failed: Callable[[CompressaError], None],
    row: Entry,
    stream: torch.cuda.Stream | None,
) -> Setup:
    exchange, costs = config.exchange, _costs(config, control)
    sizes = partition(config, parameters, costs)
    settings = Settings(
        epoch=control.epoch,
        chunk_bytes=sizes.chunk_bytes,
        credit_bytes=sizes.credit_bytes,
        silence_s=exchange.silence_s,
        heartbeat_s=exchange.heartbeat_s,
        kept_bytes=kept_bytes(config, costs),
        pacer=_pacer(config, control, row),
        keys=control.keys.named(f"{row.name} {control.epoch}"),
        poll_s=_POLL_S if has_core(control.rank, control.hosts, launched_here()) else 0.0,
    )
    return Setup(
        rank=control.rank,
        size=control.size,
        group=group,
        settings=settings,
        all_gather=control.all_gather,
        part=control.part,
        failed=failed,
        start_s=exchange.start_wait_s,
        deadline_s=exchange.deadline_s,
        early_bytes=_early_bytes(parameters),
        connections=exchange.connections,
        stream=stream,
    )


def _early_bytes(parameters: Sequence[ParameterInfo]) -> int:
    # A peer may be ahead by a step; no compressor sends more than twice the gradients.
    return _EARLY_BYTES + 4 * sum(p.elems * max(p.dtype.itemsize, 4) for p in parameters)


def _pacer(config: Config, control: Control, row: Entry) -> Pacer:
    if not row.paced:
        return Pacer(None)
    return host_pacer(config.schedule, control, config.exchange.start_wait_s)
