"""Refusals: what a model asks for that its gradients can not be combined with."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compressa.errors import ConfigError, StateError
from compressa.parameters import DTYPES, ParameterInfo

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def check_dtypes(parameters: Sequence[ParameterInfo]) -> None:
    """Refuse parameters without arithmetic.

    Raises:
        ConfigError: There is one, named with its dtype.
    """
    for parameter in parameters:
        if parameter.dtype not in DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ConfigError(
                f"the parameter {parameter.name!r} is made of {parameter.dtype} values, and "
                f"gradients are combined in {known}, or complex ones of these; convert it, or "
                "freeze it (requires_grad_(False)) before you register"
            )


def check_dense(module: nn.Module) -> None:
    """Refuse embeddings whose gradients are sparse.

    Raises:
        StateError: There is one, named with its parameter.
    """
    for name, inner in module.named_modules():
        if isinstance(inner, _EMBEDDINGS) and inner.sparse and inner.weight.requires_grad:
            weight = f"{name}.weight" if name else "weight"
            raise StateError(
                f"gradients of {weight!r} are sparse, and ranks combine dense ones; make this "
                f"{type(inner).__name__} with sparse=False"
            )


def check_reducer(model: DistributedDataParallel) -> None:
    """Refuse a model whose buckets never reach a hook.

    Raises:
        StateError: It was wrapped for `optimize_ddp = "python_reducer"`.
    """
    if model._use_python_reducer:
        raise StateError(
            'this model was wrapped while torch._dynamo.config.optimize_ddp = "python_reducer", '
            "which combines gradients without buckets, and so without this hook; set it to "
            '"ddp_optimizer" before you wrap the network'
        )


def check_inputs(model: DistributedDataParallel) -> None:
    """Refuse a model that ranks may stop training at different steps.

    Raises:
        StateError: It was given to `model.join()` or to torch's `Join`.
    """
    if model._join_config.enable:
        raise StateError(
            "this model is within model.join() (or torch's Join), under which a rank without "
            "inputs answers for DDP's own sums, but not for a hook's; give all ranks as many "
            "batches, wrap the network anew, and train without join, or with join(enable=False)"
        )
