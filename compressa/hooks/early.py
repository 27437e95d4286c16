"""EarlyGradients: gradients leave a bucket of DDP before it is full.

DDP calls its hook once a bucket has all of its gradients. Buckets have 25 MiB if nothing else is
said, and the last one is full at the end of backward: what waits for it leaves the network idle
until then. Each gradient lies in its bucket as soon as autograd has it, though. So units go to the
engine as they become complete, in the memory of the buckets, and the hook submits what is left.

Not where a GPU is given exchanges, too, which would begin a little sooner for more of the host's
time. And it needs `gradient_as_bucket_view=True`, by which a gradient tells where it lies; and
buckets that stay where they are, as they do from the second step on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from compressa.engine.device_stream import Ticket
from compressa.hooks.held import Awaited, HeldGradients


class EarlyGradients:
    """Submits gradients of one model, within backward and from DDP's buckets.

    Args:
        parameters: By name; those that may leave early.
        submit: Submits some gradients of the step.
        awaited: Returns what the step still waits for, as `Engine.awaited`.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        submit: Callable[[Mapping[str, torch.Tensor]], Ticket],
        awaited: Callable[[], Awaited],
    ) -> None:
        self._parameters = dict(parameters)
        self._submit = submit
        self._held = HeldGradients(awaited)
        self._due = self._listening = False
        self._tickets: dict[str, Ticket] = {}  # of the step
        self._in_buckets: dict[str, tuple[torch.Tensor, int]] = {}  # and where that is

    def begin(self, due: bool) -> None:
        """Begin a step, or end one.

        Args:
            due: Whether gradients may leave early: DDP calls its hook in the next backward.
        """
        self._due = due
        self._tickets.clear()
        if due:
            self._held.begin()
            if not self._listening:
                self._listening = True
                self._listen()

    def full(self, gradients: Mapping[str, torch.Tensor]) -> list[Ticket]:
        """Submit what is left of a full bucket.

        Args:
            gradients: All of the bucket, by name, in its memory.

        Returns:
            What waits for all of them.
        """
        held = self._held.take(gradients)
        left = {name: each for name, each in gradients.items() if name not in self._tickets}
        if self._due:
            self._held.pass_by(left.keys() - held.keys())
        if left:
            self._send(left)
        self._in_buckets.update((name, (g, g.data_ptr())) for name, g in gradients.items())
        return list({self._tickets[name] for name in gradients})

    def _listen(self) -> None:
        # To nodes, which call one after another: DDP, which came first, has filled its bucket then.
        # Within a backward pass none could be added to the node that is running.
        # Autograd keeps what it calls where no collector looks.
        own = weakref.ref(self)

        def ready(name: str, *_: Any) -> None:
            early = own()
            if early is not None:
                early._ready(name)

        for name, parameter in self._parameters.items():
            get_gradient_edge(parameter).node.register_hook(partial(ready, name))

    def _ready(self, name: str) -> None:
        """In backward, and after DDP: a parameter's gradient is there."""
        in_bucket = self._in_buckets.get(name)
        if not self._due or in_bucket is None or name in self._tickets:
            return
        gradient, address = in_bucket
        now = self._parameters[name].grad
        if now is None or now.data_ptr() != address:
            return  # buckets were made anew
        if self._held.add(name, gradient):
            self._send(self._held.take())

    def _send(self, gradients: Mapping[str, torch.Tensor]) -> None:
        self._tickets.update(dict.fromkeys(gradients, self._submit(gradients)))
