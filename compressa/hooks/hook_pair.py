"""comm_hook: the state and the function that DDP and the slots of frameworks take as a pair."""

# No `from __future__ import annotations` here: DDP compares the hook's annotation of `bucket`
# with the class itself.
import gc
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from compressa.config import Source
from compressa.errors import CompressaError, StateError
from compressa.hooks.ddp import DDPHook, HookState, Reference
from compressa.hooks.first_bucket import FirstBucket
from compressa.hooks.handle import Handle
from compressa.hooks.refusals import check_reducer
from compressa.hooks.register import check_unregistered, open_for, take_over

_CALLER = "compressa.comm_hook"


class CommHookState(HookState):
    """What DDP hands to the hook; it opens the engine when the first bucket comes.

    A copy, as in a model or a strategy that was pickled, has opened nothing yet.

    Args:
        config: Source of the configuration.
        scaler: The `GradScaler`, if losses are scaled.
        watched: Whether to warn if no bucket ever comes.
    """

    def __init__(self, config: Source, scaler: Any, watched: bool = True) -> None:
        self._config = config
        self._scaler = scaler
        self._watch = FirstBucket(lambda: _holders(self)) if watched else None
        # DDP's reducer holds this object where no collector looks, so this holds no model.
        self._reference: Reference | None = None
        self._resumed: str | Path | None = None

    @property
    def copied(self) -> bool:
        """Whether it is a copy."""
        return self._watch is None

    @property
    def handle(self) -> Handle:
        """What `register_comm_hook` would have returned; for as long as the model lives.

        Raises:
            StateError: No bucket has come yet, or the model does not exist any more.
        """
        hook = None if self._reference is None else self._reference()
        if hook is None:
            raise StateError(
                f"{_CALLER}: there is no handle before the first backward pass"
                if self._reference is None
                else f"{_CALLER}: the model that this hook was registered for is gone"
            )
        return hook.handle

    def load(self, path: str | Path) -> None:
        """Read a checkpoint that `handle.save` has written, when the first bucket comes.

        Args:
            path: As `Handle.load` takes it; the same on every rank.

        Raises:
            StateError: That has come: call `handle.load`.
        """
        if self._reference is not None:
            raise StateError(f"{_CALLER}: the first bucket has come; call state.handle.load")
        self._resumed = path

    def hook(self, bucket: GradBucket) -> DDPHook:
        """Return the hook that takes a bucket. The first call is collective.

        Raises:
            StateError: The hook is another model's.
            CompressaError: As `compressa.register_comm_hook`.
        """
        if self._reference is None:
            self._open()
        hook = None if self._reference is None else self._reference()
        if hook is None or not hook.owns(bucket):
            _refuse_second_model()
        return hook

    def heard(self) -> None:
        """Stop to wait for a first call of the hook."""
        if self._watch is not None:
            self._watch.came()

    def _open(self) -> None:
        self.heard()
        # DDP tells a hook nothing of its model, which is needed for the names of parameters, its
        # process group, buffers and forward passes, and keeps no list of models either. But each
        # model keeps the states that were registered with it. Looking costs a fraction of a second,
        # once.
        models = _holders(self)
        try:
            model = _only(models)
            check_reducer(model)  # which hands over something else than buckets
            check_unregistered(model, self)
            handle = open_for(_CALLER, model, self._config)
            with handle.closed_on_error():
                if self._resumed is not None:
                    handle.load(self._resumed)
                self._reference = Reference(take_over(model, handle, self._scaler))
        except CompressaError as error:
            for model in models:  # whose own next forward pass would tell of an internal error
                model.register_forward_pre_hook(partial(_raise_again, error))
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the engine out: it has threads and connections."""
        return CommHookState, (self._config, self._scaler, False)


Hook = Callable[[CommHookState, GradBucket], torch.futures.Future[torch.Tensor]]


def comm_hook(config: Source, *, scaler: Any = None) -> tuple[CommHookState, Hook]:
    """Return a state and a hook, for `DDP.register_comm_hook` and slots of frameworks.

    The hook opens its engine with the first bucket, collectively, as `register_comm_hook` does at
    once. So the first backward pass raises what is wrong with the configuration, on every
    rank; where you have the DDP model in your hands, `register_comm_hook` says so earlier.

    If no bucket has come when an optimizer first steps, a warning says so.

    Args:
        config: Path of a TOML file, a mapping, or a `Config`.
        scaler: The `GradScaler`, if losses are scaled.

    Returns:
        The state, for one model, whose `handle` is there once the first bucket has come; and the
        hook.

    Example:
        >>> state, hook = comm_hook("compressa.toml")   # doctest: +SKIP
        >>> ddp_model.register_comm_hook(state, hook)  # doctest: +SKIP
        >>> state.handle.stats().ratio                 # doctest: +SKIP
    """
    return CommHookState(config, scaler), compressed_mean


def compressed_mean(
    state: CommHookState, bucket: GradBucket, shard: torch.Tensor | None = None
) -> torch.futures.Future[torch.Tensor]:
    """The function that DDP calls with each bucket, and FSDP1 with a gradient and its own shard.

    Raises:
        StateError: It was FSDP1, or DDP's reducer for compiled autograd, which has no buckets.
    """
    if shard is not None or not isinstance(bucket, GradBucket):
        state.heard()
        for model in _holders(state):
            check_reducer(model)
        raise StateError(
            f"{_CALLER}: FullyShardedDataParallel (FSDP1) hands over flat memory without names, by "
            "which nothing could be compressed or kept; shard the model by FSDP2, "
            "torch.distributed.fsdp.fully_shard(model), and call compressa.apply_to_fsdp"
        )
    return state.hook(bucket).submit(bucket)


def _holders(state: CommHookState) -> list[DistributedDataParallel]:
    """Return the models that a state is registered with.

    By type, since `isinstance` asks objects for their class, and some answer by running code.
    """
    return [
        found
        for found in gc.get_objects()
        if issubclass(type(found), DistributedDataParallel)
        and any(held is state for _, held in vars(found).get("_comm_hooks", ()))
    ]


def _only(models: Sequence[DistributedDataParallel]) -> DistributedDataParallel:
    if len(models) > 1:
        _refuse_second_model()
    if not models:
        raise StateError(
            f"{_CALLER}: no DistributedDataParallel is found that has this hook; register it by "
            "ddp_model.register_comm_hook(state, hook), and call gc.freeze(), which hides models, "
            "after the first step"
        )
    return models[0]


def _refuse_second_model() -> NoReturn:
    raise StateError(
        f"{_CALLER}: this state is registered with two models, and is for one: call "
        "compressa.comm_hook again for each further model"
    )


def _raise_again(error: CompressaError, *_: Any) -> NoReturn:
    raise copy(error)
