"""comm_hook: the state and the function that DDP, FSDP1 and slots of frameworks take as a pair."""

# No `from __future__ import annotations` here: DDP compares the hook's annotation of `bucket`
# with the class itself.
import gc
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Union

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from compressa.config import Source
from compressa.errors import CompressaError, StateError
from compressa.hooks.ddp import DDPHook, HookState, Reference
from compressa.hooks.first_bucket import FirstBucket
from compressa.hooks.handle import Handle
from compressa.hooks.refusals import check_reducer
from compressa.hooks.register import check_unregistered, open_for, take_over

if TYPE_CHECKING:  # to import FSDP takes a second
    from compressa.integrations.fsdp import FSDPHandle
    from compressa.integrations.fsdp.flat_hook import FlatHook

_CALLER = "compressa.comm_hook"

T = TypeVar("T")
Opened = Union[Reference, "weakref.ref[FSDPHandle]"]


class CommHookState(HookState):
    """What DDP and FSDP1 hand to the hook; it opens the engine when the first gradient comes.

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
        self._opened: Opened | None = None
        self._resumed: str | Path | None = None

    @property
    def copied(self) -> bool:
        """Whether it is a copy."""
        return self._watch is None

    @property
    def handle(self) -> "Handle | FSDPHandle":
        """What `register_comm_hook` would have returned, or `apply_to_fsdp` for a model of FSDP1.

        It is there for as long as the model lives.

        Raises:
            StateError: No gradient has come yet, or the model does not exist any more.
        """
        opened = None if self._opened is None else self._opened()
        if opened is None:
            raise StateError(
                f"{_CALLER}: there is no handle before the first backward pass"
                if self._opened is None
                else f"{_CALLER}: the model that this hook was registered for is gone"
            )
        return opened.handle if isinstance(opened, DDPHook) else opened

    def load(self, path: str | Path) -> None:
        """Read a checkpoint that `handle.save` has written, when the first gradient comes.

        Args:
            path: As `Handle.load` takes it; the same on every rank.

        Raises:
            StateError: That has come: call `handle.load`.
        """
        if self._opened is not None:
            raise StateError(f"{_CALLER}: the first gradient has come; call state.handle.load")
        self._resumed = path

    def hook(self, bucket: GradBucket) -> DDPHook:
        """Return the hook that takes a bucket. The first call is collective.

        Raises:
            StateError: The hook is another model's.
            CompressaError: As `compressa.register_comm_hook`.
        """
        hook = self._open(self._take_over) if self._opened is None else self._opened()
        if not isinstance(hook, DDPHook) or not hook.owns(bucket):
            _refuse_second_model()
        return hook

    def reduce(self, gradient: torch.Tensor, shard: torch.Tensor | None) -> None:
        """Reduce the first gradient of FSDP1. Collective; each unit has a hook of its own then.

        Args:
            gradient: Of a whole unit, padded.
            shard: The slice of the mean that this rank owns, to be filled.

        Raises:
            StateError: The hook is another model's, or the gradient is of DDP's reducer for
                compiled autograd, which has no buckets.
            CompressaError: As `compressa.apply_to_fsdp`.
        """
        if self._opened is not None:
            _refuse_second_model()
        self._open(partial(self._take_over_flat, gradient)).reduce(gradient, shard)

    def _open(self, take_over: Callable[[Any], tuple[Opened, T]]) -> T:
        if self._watch is not None:
            self._watch.came()
        # DDP tells a hook nothing of its model, which is needed for the names of parameters, its
        # process group, buffers and forward passes, and keeps no list of models either; nor does
        # FSDP1. But each model keeps the states that were registered with it. Looking costs a
        # fraction of a second, once.
        models = _holders(self)
        try:
            self._opened, hook = take_over(_only(models))
            return hook
        except CompressaError as error:
            for model in models:  # whose own next forward pass would tell of an internal error
                model.register_forward_pre_hook(partial(_raise_again, error))
            raise

    def _take_over(self, model: DistributedDataParallel) -> tuple[Reference, DDPHook]:
        check_reducer(model)  # which hands over something else than buckets
        check_unregistered(model, self)
        handle = open_for(_CALLER, model, self._config)
        with handle.closed_on_error():
            if self._resumed is not None:
                handle.load(self._resumed)
            hook = take_over(model, handle, self._scaler)
            return Reference(hook), hook

    def _take_over_flat(
        self, gradient: torch.Tensor, model: Any
    ) -> "tuple[weakref.ref[FSDPHandle], FlatHook]":
        if isinstance(model, DistributedDataParallel):
            check_reducer(model)
        from compressa.integrations.fsdp import flat_hook

        given = (self._config, self._scaler, self._resumed)
        handle, hook = flat_hook.take_over(_CALLER, model, *given, gradient)
        return weakref.ref(handle), hook

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the engine out: it has threads and connections."""
        return CommHookState, (self._config, self._scaler, False)


Hook = Callable[..., torch.futures.Future[torch.Tensor]]


def comm_hook(config: Source, *, scaler: Any = None) -> tuple[CommHookState, Hook]:
    """Return a state and a hook, for `register_comm_hook` of DDP and FSDP1 and frameworks' slots.

    The hook opens its engine with the first gradient, collectively, as `register_comm_hook` does at
    once. So the first backward pass raises what is wrong with the configuration, on every
    rank; where you have the DDP model in your hands, `register_comm_hook` says so earlier.

    If no gradient has come when an optimizer first steps, a warning says so.

    `FullyShardedDataParallel` (FSDP1) hands over each unit's gradient and this rank's shard of it:
    gradients are compressed on their way to the owners of shards, as by `compressa.apply_to_fsdp`.

    Args:
        config: Path of a TOML file, a mapping, or a `Config`.
        scaler: The `GradScaler`, if losses are scaled; not with FSDP1.

    Returns:
        The state, for one model, whose `handle` is there once the first gradient has come; and the
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
    """The function that DDP calls with each bucket, and FSDP1 with the first gradient and a shard.

    DDP wants a future by its annotation; FSDP1 looks at none.

    Args:
        state: From `comm_hook`.
        bucket: DDP's; of FSDP1, a unit's gradient, as of `FlatHook.reduce`.
        shard: As of `FlatHook.reduce`; None from DDP.

    Returns:
        Of the bucket's buffer, averaged in place; for FSDP1 one that never completes.
    """
    if isinstance(bucket, GradBucket):
        return state.hook(bucket).submit(bucket)
    state.reduce(bucket, shard)
    return torch.futures.Future()


def _holders(state: CommHookState) -> list[nn.Module]:
    """Return the models that a state is registered with.

    By type, since `isinstance` asks objects for their class, and some answer by running code.
    """
    modules = (found for found in gc.get_objects() if issubclass(type(found), nn.Module))
    return [found for found in modules if _holds(vars(found), state)]


def _holds(model: dict[str, Any], state: CommHookState) -> bool:
    """Whether a model of DDP, or the outermost unit of FSDP1, has a state among its attributes."""
    if model.get("_is_root"):
        return model.get("_comm_hook_state") is state
    return any(held is state for _, held in model.get("_comm_hooks", ()))


def _only(models: Sequence[nn.Module]) -> nn.Module:
    if len(models) > 1:
        _refuse_second_model()
    if not models:
        raise StateError(
            f"{_CALLER}: no model is found that has this hook; register it by "
            "model.register_comm_hook(state, hook), and call gc.freeze(), which hides models, "
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
