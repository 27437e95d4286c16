"""Uses: when the forward pass first uses each parameter, seen by lazy reads.

The first forward passes have all parameters lazy, though nothing is due. What tells of its use
then is waited for at its use from then on. What does not (C++ reads it directly, or it was not used
yet) is updated before a forward pass begins, until one sees it used.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from compressa.overlap.lazy_reads import lazy_class, make_lazy, release

_WATCHED_PASSES = 3

Read = Callable[[Sequence[torch.Tensor]], None]


class Uses:
    """Makes parameters lazy, and notes in which order and when a forward pass wants them.

    Args:
        module: The model.
        parameters: What is trained, by name.
        read: Called when lazy parameters are wanted; none given means any.

    Attributes:
        need_s: By name, in the order of first use: seconds from the start of a forward pass to
            the first use, without waits for updates; as seen in the first passes.
        forward_s: Seconds that the last forward pass took, without these.
    """

    def __init__(
        self, module: nn.Module, parameters: Mapping[str, nn.Parameter], read: Read
    ) -> None:
        self.need_s: dict[str, float] = {}
        self.forward_s = 0.0
        self._modules = list(module.modules())
        self._names = {id(p): name for name, p in parameters.items()}
        self._lazy = lazy_class(nn.Parameter, read)
        self._able = {name: p for name, p in parameters.items() if type(p) is nn.Parameter}
        self._watched: dict[int, nn.Parameter] = {}
        self._began_s: float | None = None
        self._passes = 0
        self._noted: set[int] = set()

    @property
    def under_way(self) -> bool:
        """Whether a forward pass is."""
        return self._began_s is not None

    def can_be_lazy(self, parameter: nn.Parameter) -> bool:
        """Whether a parameter can tell: it is no class of its own with behaviour of its own."""
        return self._names.get(id(parameter)) in self._able

    def seen(self, name: str) -> bool:
        """Whether a parameter tells when it is used."""
        return name in self.need_s

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers of the model's modules, as they are now, each once."""
        named = [module._buffers for module in self._modules if module._buffers]
        found = (buffer for buffers in named for buffer in buffers.values())
        return list({id(buffer): buffer for buffer in found if buffer is not None}.values())

    def make_lazy(self, parameters: Iterable[nn.Parameter]) -> None:
        """Have parameters tell."""
        make_lazy(parameters, self._lazy)

    @contextlib.contextmanager
    def forward(self, due: Container[int]) -> Iterator[bool]:
        """A forward pass.

        Args:
            due: By `id`, parameters that are lazy already.

        Yields:
            Whether all are, so that the times of all are known afterwards.
        """
        self._passes += 1
        self._noted.clear()
        self._watch(due)
        self._began_s = time.perf_counter()
        try:
            yield self._all_watched
            self.forward_s = time.perf_counter() - self._began_s
        finally:
            self._began_s = None
            self.stop_watching()

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """A wait, which does not count."""
        began_s = time.perf_counter()
        yield
        if self._began_s is not None:
            self._began_s += time.perf_counter() - began_s

    def updated(self, parameters: Iterable[nn.Parameter]) -> None:
        """Go on watching parameters that were not wanted yet, though they were updated."""
        if self._began_s is not None and self._all_watched:
            new = {id(p): p for p in parameters if id(p) not in self._noted}
            self._watched.update(new)
            self.make_lazy(new.values())

    def note(self, parameter: torch.Tensor) -> None:
        """A parameter is wanted now."""
        if self._began_s is not None:
            self._noted.add(id(parameter))
            name = self._names[id(parameter)]
            if self._all_watched or name not in self.need_s:
                self.need_s[name] = time.perf_counter() - self._began_s
        self._watched.pop(id(parameter), None)
        release([parameter], nn.Parameter)

    def stop_watching(self) -> None:
        """Have only parameters be lazy whose updates are due."""
        release(self._watched.values(), nn.Parameter)
        self._watched.clear()

    @property
    def _all_watched(self) -> bool:
        return self._passes <= _WATCHED_PASSES

    def _watch(self, due: Container[int]) -> None:
        """Watch what is not known yet, or not well: the first pass takes its time."""
        if not self._all_watched and len(self.need_s) == len(self._able):
            return
        compiled = self.compiled()
        for name, parameter in self._able.items():
            known = not self._all_watched and name in self.need_s
            if not known and id(parameter) not in due and id(parameter) not in compiled:
                self._watched[id(parameter)] = parameter
                self.make_lazy([parameter])

    def compiled(self) -> set[int]:
        """Return parameters, by `id`, that compiled code reads, which does not ask.

        To be of another class when it is called would have it compiled anew.
        """
        return {
            id(parameter)
            for module in self._modules
            if module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
            for parameter in module.parameters()
        }
