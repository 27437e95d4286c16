"""Replicas: the all-reduce of HSDP, over the ranks that own the same shard.

There the slow links are. FSDP2 sums over replicas by itself, and calls a hook after it; so each
group is told of its shards only (`groups.without_replicas`), and the hook averages over replicas,
by the engine that averages any tensors. A step of the engine is a pass that reduces every group.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from compressa.errors import StateError, TransportError
from compressa.hooks.handle import Handle
from compressa.integrations.fsdp.comms import changed
from compressa.integrations.fsdp.groups import CALLER, Group


class ReplicaHook:
    """Averages what one group has reduced.

    Args:
        group: The group.
        shard: Which of the shards is this rank's.
        handle: Open for all parameters of which this rank owns something; None if it owns nothing.
        counted: How errors count ranks.
    """

    def __init__(self, group: Group, shard: int, handle: Handle | None, counted: str) -> None:
        self._group, self._shard, self._handle, self._counted = group, shard, handle, counted
        self._partial: torch.Tensor | None = None

    def __call__(self, reduced: torch.Tensor) -> None:
        """Average the slice of this rank in place, and wait for it.

        Under `set_requires_all_reduce(False)` it is kept for the pass that averages.
        """
        if self._handle is None:
            return
        self._check(self._handle, reduced)
        if not self._group.inner.all_reduce_grads:
            kept = reduced if self._partial is None else reduced + self._partial
            self._partial = kept.clone()
            reduced.zero_()
            return
        if self._partial is not None:
            reduced += self._partial
            self._partial = None
        own = {
            one.parameter.name: view.view(one.local_shape(self._shard))
            for one in self._group.reduced
            if (view := one.view(reduced, self._shard)).numel()
        }
        if own:
            self._average(self._handle, own)

    def _average(self, handle: Handle, own: Mapping[str, torch.Tensor]) -> None:
        try:
            handle.wait([handle.submit(own)], self._group.reduced[0].parameter.name)
        except TransportError as error:
            error.locate(self._counted)
            raise

    def _check(self, handle: Handle, reduced: torch.Tensor) -> None:
        error = changed(self._group.reduced, reduced)
        if self._group.inner.gradient_divide_factor is not None:
            error = StateError(
                f"{CALLER}: set_gradient_divide_factor would divide the sum over replicas, and "
                "their mean is computed; leave it out, and scale the loss"
            )
        if error is not None:
            handle.engine.session.fail(error)
            raise error
