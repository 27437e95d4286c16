"""Plan: what a configuration compresses of a sharded model, worked out before ranks meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from compressa.codecs.base import Codec
from compressa.codecs.bf16 import Bf16
from compressa.codecs.none import NoCompression
from compressa.compressor import Compressor
from compressa.config import Config, Source, assign, assign_weights, load_config
from compressa.config.strategies import check_followed
from compressa.engine.device_stream import DeviceStream, device_stream_of
from compressa.errors import BackendUnavailable, ConfigError
from compressa.integrations.fsdp.groups import Sharding, check_dtypes
from compressa.parameter_server.coding import Coding, coding_of
from compressa.parameters import ParameterInfo


@dataclass(frozen=True)
class Plan:
    """What is compressed, and how.

    Attributes:
        config: The settings.
        device_stream: Where the model is.
        codings: By parameter, how gradients go to the owners of shards; empty if as torch does it.
        weights: By parameter, how weights come from there; empty likewise.
        compressors: By parameter, how replicas average; empty likewise.
    """

    config: Config = field(default_factory=Config)
    device_stream: DeviceStream = field(default_factory=DeviceStream)
    codings: Mapping[str, Coding] = field(default_factory=dict)
    weights: Mapping[str, Codec] = field(default_factory=dict)
    compressors: Mapping[str, Compressor] = field(default_factory=dict)


def plan_for(source: Source, sharding: Sharding) -> Plan:
    """Return what a configuration means for a model.

    Args:
        source: Of the configuration.
        sharding: Of the model.

    Raises:
        CompressaError: It is wrong, or asks for what is not done here.
    """
    config = load_config(source)
    check_followed(config.strategy, sharding.caller)
    _check_device(config, sharding.device)
    shards, replicas = _between(config, sharding)
    for mistake in _not_followed(config, sharding.caller, shards=shards):
        raise ConfigError(mistake)
    compressors = assign(config, sharding.reduced)
    codings, weights = dict[str, Coding](), dict[str, Codec]()
    if shards or replicas:
        check_dtypes(sharding.caller, sharding.reduced, "the gradient")
    if shards:
        codings = {p.name: _coding(compressors[p.name], p) for p in sharding.reduced}
    if config.fsdp.weights.name != "none":
        check_dtypes(sharding.caller, sharding.gathered, "the values")
        _check_gathers(sharding)
        found = assign_weights(config, sharding.gathered)
        weights = {p.name: _exact(found[p.name], p.dtype) for p in sharding.gathered}
    stream = device_stream_of(sharding.device, graphs=config.engine.cuda_graphs)
    return Plan(config, stream, codings, weights, compressors if replicas else {})


def _between(config: Config, sharding: Sharding) -> tuple[bool, bool]:
    """Return whether gradients are compressed between shards, and between replicas."""
    wanted, replicated = config.fsdp.gradients, sharding.replicas is not None
    if wanted == "auto":
        return not replicated, replicated
    if wanted != "shards" and not replicated:
        raise ConfigError(
            f'fsdp.gradients = "{wanted}", but the model has no replicas: its mesh has one '
            'dimension; use "shards", or give fully_shard a mesh of two dimensions, (replicas, '
            "shards)"
        )
    return wanted in ("shards", "both"), wanted in ("replicas", "both")


def _not_followed(config: Config, caller: str, *, shards: bool) -> Iterator[str]:
    """Yield what is asked for and would be ignored."""
    if config.engine.recover:
        yield (
            f"engine.recover: {caller} can not go on without a lost rank, whose shard of the "
            "weights is lost with it; leave it out, and begin again from a checkpoint"
        )
    if config.exchange.order != "own":
        yield (
            f'exchange.order = "{config.exchange.order}": {caller} exchanges from threads of its '
            "own; leave it out"
        )
    if not shards:
        return
    if config.trace.path is not None:
        yield f"trace.path: {caller} traces only what replicas exchange; leave it out"
    if config.exchange.kind not in ("auto", "scatter_reduce"):
        yield (
            f'exchange.kind = "{config.exchange.kind}": gradients go to the owners of shards, '
            "and nowhere else; leave it out"
        )
    if config.feedback.dtype == "int8":
        yield (
            'feedback.dtype = "int8": shards begin anywhere in a block of such residuals; use '
            '"bfloat16" or "float32"'
        )


def _coding(compressor: Compressor, parameter: ParameterInfo) -> Coding:
    coding = coding_of(compressor, parameter, "the owner of a shard")
    return Coding(coding.compressor, _exact(coding.codec, parameter.dtype), coding.rule)


def _exact(codec: Codec, dtype: torch.dtype) -> Codec:
    """Return what sends bfloat16 values as they are, where nothing shall be lost of them."""
    plain = isinstance(codec, NoCompression) and dtype is torch.bfloat16
    return Bf16() if plain else codec


def _check_gathers(sharding: Sharding) -> None:
    """Refuse groups whose all-gathers bring something else than a slice from each shard.

    Raises:
        ConfigError: There is one.
    """
    for group in sharding.groups:
        inner, first = group.inner, group.gathered[0].parameter.name
        if inner.post_forward_mesh_info not in (None, inner.mesh_info):
            raise ConfigError(
                f"fsdp.weights: the group of {first!r} is resharded to fewer ranks after forward; "
                "give fully_shard reshard_after_forward=True or False"
            )
        dtypes = {one.parameter.dtype for one in group.gathered}
        local = (parameter._sharded_local_tensor for parameter in inner.fsdp_params)
        if len(dtypes) > 1 or any(hasattr(x, "fsdp_pre_all_gather") for x in local):
            raise ConfigError(
                f"fsdp.weights: parameters of the group of {first!r} come in several dtypes, or in "
                "a form of their own; give them to different fully_shard calls, or leave "
                "fsdp.weights out"
            )


def _check_device(config: Config, device: torch.device) -> None:
    wanted = config.engine.device
    if wanted not in ("auto", device.type):
        raise BackendUnavailable(
            f'engine.device = "{wanted}", but the model is on {device}; gradients are compressed '
            'where they are: set engine.device = "auto"'
        )
