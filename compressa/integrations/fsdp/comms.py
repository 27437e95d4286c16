"""Comms: what FSDP2 calls in place of its own collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from compressa.errors import StateError
from compressa.integrations.fsdp.groups import CALLER, Group
from compressa.integrations.fsdp.shards import Shards
from compressa.integrations.fsdp.sliced import SlicedParameter, slice_elems


class _Compressed:
    """A collective of one group, with buffers as FSDP2 makes them by itself.

    Args:
        group: The group.
        shards: Does it.
    """

    def __init__(self, group: Group, shards: Shards) -> None:
        self._group, self._shards = group, shards

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return memory for a collective."""
        return torch.empty(*size, dtype=dtype, device=device)


class CompressedReduceScatter(_Compressed, ReduceScatter):
    """Reduces the gradients of one group."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduce `input_tensor`, and wait for it; on a GPU for its work to be enqueued."""
        self._shards.check(changed(self._group.reduced, output_tensor))
        weight = self._weight(op, group.size())
        self._shards.reduce_scatter(self._group.number, input_tensor, output_tensor, weight)

    def _weight(self, op: Any, ranks: int) -> float:
        if op == dist.ReduceOp.AVG:
            return 1.0 / ranks
        if op == dist.ReduceOp.SUM:
            return 1.0
        error = StateError(
            f"{CALLER}: set_gradient_divide_factor has FSDP2 ask for {op}, which only NCCL knows; "
            "call set_force_sum_reduction_for_comms(True) too, which divides afterwards"
        )
        self._shards.check(error)
        raise error


class CompressedAllGather(_Compressed, AllGather):
    """Brings the weights of one group to all ranks."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Fill `output_tensor`, whose own slice is `input_tensor`; nothing is left to wait for."""
        self._shards.check(changed(self._group.gathered, input_tensor))
        self._shards.all_gather(self._group.number, output_tensor)


def changed(sliced: Sequence[SlicedParameter], brought: torch.Tensor) -> StateError | None:
    """Return an error if FSDP2 brings something else than the parameters that a group had.

    Args:
        sliced: Those of a rank's slice.
        brought: A rank's slice of what it brings.
    """
    elems, dtype = slice_elems(sliced), sliced[0].parameter.dtype
    if (brought.numel(), brought.dtype) == (elems, dtype):
        return None
    return StateError(
        f"{CALLER}: of the group of {sliced[0].parameter.name!r}, FSDP2 brings {brought.numel()} "
        f"values of {brought.dtype} for each rank, in place of {elems} of {dtype}: a parameter had "
        "no gradient in this pass, was frozen or unfrozen since, or has another dtype; call "
        "model.set_reduce_scatter_unused_params(True), or shard the model anew"
    )
