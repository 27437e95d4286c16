"""hook and overlapped: gradients are averaged in each step, so all ranks hold the same values."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from compressa.errors import StateError
from compressa.hooks import register_comm_hook
from compressa.hooks.opening import open_handle
from compressa.hooks.register import install
from compressa.overlap import OverlappedDataParallel
from compressa.strategies.base import EngineStrategy, Strategy, Training


class EveryStep(EngineStrategy):
    """A wrapped model has its gradients averaged by the time the optimizer steps."""

    _meets_in_step = False

    def step(self) -> None:
        """Take a step of the optimizer."""
        self._step_optimizer()

    def sync(self) -> None:
        """Do updates that an overlapped model still has to do; without any, nothing is to be done.

        All ranks hold the same parameters then; see `Strategy.sync`.

        Raises:
            CompressaError: Gradients that these updates wait for could not be averaged.
        """
        if isinstance(self.model, OverlappedDataParallel):
            self.model.flush()

    def close(self) -> None:
        """End all threads."""
        if isinstance(self.model, OverlappedDataParallel):
            self.model.close()
        super().close()


def open_hook(training: Training) -> Strategy:
    """Register the hook with a DistributedDataParallel, which is made unless it is one already."""
    model, scaler, group = training.model, training.scaler, training.group
    if isinstance(model, DistributedDataParallel):
        if model.process_group != group:
            raise StateError(
                "compressa.attach: this DistributedDataParallel is of another process group; give "
                "that one as group"
            )
        handle = register_comm_hook(model, training.source, scaler=scaler)
    else:  # ranks agree on the configuration before any of them waits in DDP's constructor
        caller, source = training.caller, training.source
        handle = open_handle(caller, source, model, group, strategies=["hook"])
        with handle.closed_on_error():
            model = DistributedDataParallel(model, process_group=group)
        install(model, handle, scaler)
    return EveryStep(model, training.optimizer, handle, scaler)


def open_overlapped(training: Training) -> Strategy:
    """Wrap the model."""
    model = OverlappedDataParallel(
        training.model,
        training.optimizer,
        training.source,
        process_group=training.group,
        scaler=training.scaler,
    )
    return EveryStep(model, training.optimizer, model.handle, training.scaler)
