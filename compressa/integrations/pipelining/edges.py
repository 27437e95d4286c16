"""compress_edge: what crosses the edges of a pipeline, activations and their gradients, compressed.

`torch.distributed.pipelining` has each stage say what it sends and receives for a microbatch, and
its schedules do that in their order. Here the tensors of a stage's sends become payloads, those of
its receives room for payloads, and what came is decoded when the stage takes it up. Schedules,
order and deadlines stay torch's.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch._C._distributed_c10d import Store
from torch.distributed.pipelining.stage import _PipelineStageBase

from compressa.codecs import Codec, Draw
from compressa.config import Config, Source, load_config
from compressa.engine.start.process_groups import call_of_all, group_or_world
from compressa.engine.start.startup import check_alike
from compressa.engine.start.store_gather import all_gather_by
from compressa.errors import CompressaError, StateError
from compressa.integrations.pipelining.flow import Flow, Ops, Traffic
from compressa.kernels.compiled import compile_once

_CALLER = "compressa.compress_edge"
_SAMPLE_ELEMS = 160_000  # more than any kernel takes for few elements
_compressed: weakref.WeakSet[_PipelineStageBase] = weakref.WeakSet()


class Edge:
    """The edges of a stage whose tensors are compressed; what `compress_edge` returns.

    Attributes:
        activations: What this stage has sent of them, to the next one.
        gradients: What this stage has sent of them, to the one before.
    """

    def __init__(self, stage: _PipelineStageBase, config: Config) -> None:
        this, seed = stage.stage_index, config.engine.seed
        forward, backward = _codecs(config)
        self._stage, self._kept = stage, config.pipeline.differences
        to_next = Flow(forward, seed, this, gradients=False, differences=self._kept)
        from_last = Flow(forward, seed, this - 1, gradients=False, differences=self._kept)
        to_last = Flow(backward, seed, this, gradients=True)
        from_next = Flow(backward, seed, this + 1, gradients=True)
        self.activations: Traffic = to_next.traffic
        self.gradients: Traffic = to_last.traffic
        self._rows: dict[Flow, torch.Tensor] = {}  # samples of the next step
        self._named = (to_next, from_last)
        replaced: dict[str, Callable[[int, Any], Any]] = {
            "get_fwd_send_ops": partial(self._forward, to_next, to_next.sent),
            "get_fwd_recv_ops": partial(self._forward, from_last, from_last.posted),
            "get_bwd_send_ops": to_last.sent,
            "get_bwd_recv_ops": from_next.posted,
        }
        taken = {
            "_retrieve_recv_activations": from_last.arrived,
            "_retrieve_recv_grads": from_next.arrived,
        }
        for name, change in replaced.items():
            setattr(stage, name, _changed(getattr(stage, name), change))
        for name, arrived in taken.items():
            setattr(stage, name, _decoded(arrived, getattr(stage, name)))

    def samples(self, numbers: Iterable[int] | torch.Tensor) -> None:
        """Say which training samples the next step is of, with `pipeline.differences`.

        Call it on every rank of the pipeline, with the same numbers, before each training step.

        Args:
            numbers: One for each row of the batch, each once, such as indices into the data set.

        Raises:
            StateError: The configuration asks for no differences; or a number is there twice.
        """
        if not self._kept:
            raise StateError(
                "edge.samples is for activations that are sent as differences; set "
                "pipeline.differences, or leave the call out"
            )
        rows = numbers if isinstance(numbers, torch.Tensor) else torch.tensor(list(numbers))
        if rows.unique().numel() < rows.numel():
            raise StateError("edge.samples was given a sample twice; name each row's own")
        self._rows = dict.fromkeys(self._named, rows.cpu())

    def _forward(self, flow: Flow, change: Callable[..., Ops], chunk: int, ops: Ops) -> Ops:
        if ops:
            check_neighbours(self._stage)
        named = self._kept and ops and self._stage.has_backward  # not where a schedule evaluates
        return change(chunk, ops, self._samples_of(flow, chunk) if named else None)

    def _samples_of(self, flow: Flow, chunk: int) -> list[int]:
        """Return the samples of a microbatch, which is cut out of the batch as torch does it."""
        if flow not in self._rows:
            raise StateError(
                "pipeline.differences is set, but not which samples this step is of; call "
                "edge.samples before each training step, on every rank of the pipeline"
            )
        count = self._stage.chunks
        assert count is not None, "a stage with a backward pass knows its microbatches"
        samples: list[int] = self._rows[flow].tensor_split(count)[chunk].tolist()
        if chunk == count - 1:
            del self._rows[flow]
        return samples


def compress_edge(stage: _PipelineStageBase, config: Source) -> Edge:
    """Compress what a stage of a pipeline sends to its neighbours. Collective.

    Every rank of the stage's group calls it for each of its stages, in the order of their numbers
    and before the first step of a schedule. What has no floating-point numbers is sent as it is.

    Args:
        stage: Of `torch.distributed.pipelining`, whose tensors go to the next stage only.
        config: Path of a TOML file, a mapping, or a `Config`; its section `[pipeline]` counts, and
            `engine.seed`.

    Returns:
        What this stage has sent, and where samples are named for `pipeline.differences`.

    Raises:
        ConfigError: The configuration is wrong, or differs between ranks; on every rank.
        StateError: It is no stage, or its edges are compressed already.
        Timeout: Not all ranks have called it.

    Example:
        >>> stage = PipelineStage(part, rank, 2, device)                 # doctest: +SKIP
        >>> edge = compressa.compress_edge(stage, "compressa.toml")      # doctest: +SKIP
        >>> schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=f)  # doctest: +SKIP
    """
    if not isinstance(stage, _PipelineStageBase):
        raise StateError(
            f"{_CALLER} takes a stage of torch.distributed.pipelining, not {type(stage).__name__}"
        )
    if stage in _compressed:
        raise StateError("the edges of this stage are compressed already; make a new stage")
    loaded = _agreed(stage, config)
    _compressed.add(stage)
    return Edge(stage, loaded)


def _agreed(stage: _PipelineStageBase, source: Source) -> Config:
    """Load a configuration, see that all ranks hold the same, and compile what it needs."""
    config, failure = Config(), None
    try:
        config = load_config(source)
    except CompressaError as error:
        failure = error
    group, wait_s = group_or_world(stage.group, _CALLER), config.exchange.start_wait_s
    call = call_of_all(group, wait_s, _CALLER)
    told = {
        "compressa": version("compressa"),
        **config.plugin_versions(),
        "pipeline": config.canonical()["pipeline"],
        "engine.seed": config.engine.seed,
        "stages": stage.num_stages,
    }

    def tell(_: str, store: Store) -> list[bytes]:
        return all_gather_by(store, call.rank, call.size)(json.dumps(told).encode(), "own", wait_s)

    fix = "call compressa.compress_edge with the same configuration on all ranks"
    check_alike([json.loads(text) for text in call.run(tell, failure)], "", fix)
    if torch.device(stage.device).type == "cpu":
        _compile(_codecs(config))
    return config


def _codecs(config: Config) -> tuple[Codec, Codec]:
    """Return those of activations and of gradients."""
    pipeline = config.pipeline
    forward, backward = pipeline.activations.build(), pipeline.gradients.build()
    assert isinstance(forward, Codec), "a configuration with others is refused"
    assert isinstance(backward, Codec), "a configuration with others is refused"
    return forward, backward


def _compile(codecs: Iterable[Codec]) -> None:
    """Call their kernels once, before anything waits for them; one process of a host compiles."""

    def work() -> None:
        for codec in codecs:
            x = torch.linspace(-1.0, 1.0, _SAMPLE_ELEMS)
            payload = torch.empty(codec.wire_bytes(x.numel()), dtype=torch.uint8)
            codec.encode(x, payload, Draw(0, 0, 0, 0, 0))
            codec.decode(payload, x, Draw(0, 0, 0, 0, 0))

    compile_once(f"pipeline {codecs!r}", work)


def _changed(own: Callable[[int], Ops], change: Callable[[int, Ops], Ops]) -> Callable[[int], Ops]:
    return lambda chunk: change(chunk, own(chunk))


def _decoded(arrived: Callable[[int], None], own: Callable[[int], Any]) -> Callable[[int], Any]:
    def take(chunk: int) -> Any:
        arrived(chunk)
        return own(chunk)

    return take


def check_neighbours(stage: _PipelineStageBase) -> None:
    """See that a stage has edges with its neighbours only: both ends then number tensors alike.

    Raises:
        StateError: A connection skips a stage.
    """
    this = stage.stage_index
    to = {stage_to for some in stage.act_send_info.values() for stage_to in some}
    infos = (info for some in stage.args_recv_info.values() for info in some)
    origins = {info.source for info in infos if not info.is_root_arg}
    if to - {None, this + 1} or origins - {this - 1}:
        raise StateError(
            f"stage {this} sends to or receives from others than its neighbours, and only edges "
            "between neighbours are compressed; cut the model where nothing skips a stage"
        )
