"""hogwild: ranks of one host update one set of parameters in shared memory, without locks.

Recht, Re, Wright and Niu, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient
Descent", NeurIPS 2011. Nothing is sent. Each rank's optimizer steps on the parameters that all
read; a write that comes between another's read and write is lost, which is rare where gradients are
sparse. What an optimizer keeps besides is each rank's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from compressa.config.strategy_sections import Hogwild
from compressa.engine.session import Session
from compressa.errors import StateError
from compressa.hooks import Handle
from compressa.parameters import as_real
from compressa.strategies.base import EngineStrategy, Strategy, Training
from compressa.strategies.local import open_local, statistics_of
from compressa.strategies.refusals import check_host

_ALIGNED = 64


class SharedUpdates(EngineStrategy):
    """See the module."""

    _meets_in_step = False

    def step(self) -> None:
        """Take a step of the optimizer, on what all ranks read."""
        self._step_optimizer()
        self.handle.check()

    def sync(self) -> None:
        """Wait until all ranks are here; they hold the same parameters until one goes on.

        Collective, each after its own last step; nothing is exchanged but the call itself.

        Raises:
            TransportError: A rank is lost, or does not come.
        """
        self.handle.engine.session.call_on_all("strategy.sync", str)

    def close(self) -> None:
        """End threads, and give the model memory of its own, with what is there now."""
        super().close()
        with torch.no_grad():
            for tensor in _shared(self.model).values():
                tensor.data = tensor.data.clone()


def open_hogwild(training: Training) -> Strategy:
    """Open what the section `Hogwild` says."""
    assert isinstance(training.config.strategy, Hogwild)

    handle = open_local(training, check=lambda: check_host(training), doubles=True)
    with handle.closed_on_error():
        _share(training.model, handle)
        return SharedUpdates(training.model, training.optimizer, handle, training.scaler)


def _shared(model: nn.Module) -> Mapping[str, torch.Tensor]:
    """Return what ranks share: parameters, and buffers such as running statistics."""
    return {n: p for n, p in model.named_parameters() if p.numel()} | statistics_of(model)


def _areas(model: nn.Module) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Yield each tensor that is shared, where it begins, and where the next one may."""
    end = 0
    for tensor in _shared(model).values():
        begin, end = end, end + -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
        yield tensor, begin, end


def _share(model: nn.Module, handle: Handle) -> None:
    """Have a model's tensors lie in memory that all ranks map. Collective.

    Rank 0's memory has no name in any file system, so nothing is left behind whoever dies.

    Raises:
        StateError: A rank can not map it; on every rank.
    """
    session = handle.engine.session
    memory = _mapped(session, max(end for _, _, end in _areas(model)))
    with torch.no_grad():
        for tensor, begin, _ in _areas(model):
            length = tensor.numel() * tensor.element_size()
            mapped = memory[begin : begin + length].view(as_real(tensor.detach()).dtype)
            if tensor.is_complex():
                mapped = torch.view_as_complex(mapped.view(-1, 2))
            mapped = mapped.view(tensor.shape)
            if session.rank == 0:
                mapped.copy_(tensor)
            tensor.data = mapped
    session.call_on_all("hogwild: values", str)


def _mapped(session: Session, size: int) -> torch.Tensor:
    """Return memory of rank 0's, uint8[size], that is mapped by all ranks."""
    descriptor = -1

    def make() -> str:
        nonlocal descriptor
        if session.rank:
            return ""
        if not hasattr(os, "memfd_create"):
            raise StateError('strategy.name = "hogwild" needs memfd_create, which Linux has')
        descriptor = os.memfd_create("compressa-hogwild", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    memory = torch.empty(0, dtype=torch.uint8)

    def take() -> str:
        nonlocal memory
        try:
            memory = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        except RuntimeError as error:
            raise StateError(
                f"rank {session.rank} can not map the memory of rank 0: hogwild is for processes "
                "of one user on one host, in one container; choose another strategy for several "
                f"({error})"
            ) from error
        return ""

    try:
        path = session.call_on_all("hogwild: shared memory", make)[0]
        session.call_on_all("hogwild: mapping it", take)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return memory
