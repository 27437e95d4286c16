"""Handle: what `open_engine` and `register_comm_hook` return."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from compressa.config import ConfigWarning, Source
from compressa.engine.device_stream import Ticket
from compressa.engine.engine import Engine
from compressa.engine.measuring.stats import Stats
from compressa.engine.session import CLOSE_S, GIVE_UP_S
from compressa.engine.start.link_file import AgreedLink
from compressa.errors import StateError
from compressa.hooks import saving
from compressa.hooks.integrity import Integrity
from compressa.hooks.reform import check_recoverable, reform
from compressa.hooks.switching import STEPS_AHEAD, switch


class Handle:
    """An open engine: what is submitted to it, its statistics, checkpoints, switches and its end.

    Residuals are *rank-local*: every rank keeps what it has not yet sent. `save` and `load`
    are collective and handle that; `state_dict` gives this rank's part only.

    In a `with` statement it is closed at the end.

    Args:
        engine: Combines gradients; closed with the handle.
        group: Who takes part.

    Attributes:
        engine: Combines tensors; another one after `reform`.
        config: The settings in force.
        group: Who takes part now; another one after `reform`.
        next_step: Number of the step whose tensors are submitted next.
        integrity: Compares the replicas of a model; see `attach`.
    """

    def __init__(self, engine: Engine, group: dist.ProcessGroup) -> None:
        self.config = engine.session.config
        self.group = group
        self.next_step = 0
        self.engine = engine
        self._model: weakref.ref[Any] | None = None
        self._quiesce: Callable[[], None] | None = None
        self._retired = False
        self._link = engine.session.link
        self.integrity = Integrity(engine, self.config, self._model)
        self.trace(self.config.trace.path, self.config.trace.steps)
        self._close_at_exit()

    def attach(self, model: Any, quiesce: Callable[[], None] | None = None) -> None:
        """Have a model's replicas be compared, and its process group follow `reform`.

        Args:
            model: Has `module` and `process_group`; referred to weakly.
            quiesce: Waits until nothing of the model is under way; None if nothing ever is between
                two steps.
        """
        self._model, self._quiesce = weakref.ref(model), quiesce
        self.integrity = Integrity(self.engine, self.config, self._model)

    def __enter__(self) -> Self:
        """Return the handle."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; after an error without waiting for the other ranks."""
        try:
            if error is not None:
                with self.closed_on_error():
                    raise error
        finally:
            self.close()

    def closed_on_error(self) -> AbstractContextManager[None]:
        """Close it if what is done meanwhile fails; then all ranks raise one verdict."""
        return self.engine.session.closed_on_error()

    def submit(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        loss_scale: float | None = None,
        hold_zeros: bool = False,
    ) -> Ticket:
        """Average some of the next step's tensors over the ranks, in place; does not wait.

        A step is over when each tensor that the engine was opened for has been submitted once, but
        for those without elements. All of it must have been waited for before the next step begins.

        Args:
            tensors: By name, of the shapes that the engine was opened with. They must stay
                untouched until the future is done.
            loss_scale: What they were multiplied by; None without loss scaling.
            hold_zeros: Keep the residual of a tensor back that is all zero.

        Returns:
            A future for `wait`. On a GPU it is done when all work is enqueued, and marks its end.

        Raises:
            StateError: The last step is not complete, a name is unknown or was submitted already,
                or a tensor has another shape or is on another device.
            ConfigError: The file that `exchange.link` names is missing, and no checkpoint was
                loaded that has its figures.
            CompressaError: The engine has failed earlier; the same error again.
        """
        if self._link.missing is not None:
            self._link.check()
        with self.engine.tracer.calls() if self.engine.tracer.on else nullcontext():
            ticket = self.engine.submit(
                tensors, step=self.next_step, loss_scale=loss_scale, hold_zeros=hold_zeros
            )
        if self.engine.complete:
            self.next_step += 1
        return ticket

    def wait(self, futures: Sequence[Ticket], name: str = "all gradients") -> None:
        """Wait until tensors are the mean over all ranks.

        On a GPU, what the caller enqueues next comes after these, and not after what follows them.

        Args:
            futures: From `submit`.
            name: What a trace says that was waited for.

        Raises:
            PeerLost: A rank is lost; the same error on all ranks, and from every later call.
            Timeout: A rank has not submitted its part within `exchange.deadline_s`.
            CompressaError: The engine has failed otherwise.
        """
        self.engine.wait(futures, name)

    def stats(self) -> Stats:
        """Return what was measured on this rank since registration."""
        return self.engine.stats()

    def trace(
        self, path: str | Path | None, steps: tuple[int, int] | None = None
    ) -> AbstractContextManager[object]:
        """Record where the time of each step goes on this rank, unit by unit, from now on.

        The file is for ui.perfetto.dev, and for `compressa trace summary`, which puts every moment
        of a step down to computing or to what the training thread waited for. It is written when
        recording ends: at the end of a `with` block, after the last of `steps`, when another
        trace begins or this one is ended with `handle.trace(None)`, at `close`, and at exit.

        Args:
            path: Written to `<stem>-rank<rank><suffix>`; None to record nothing from now on.
            steps: The first and the last step to be recorded; all if not given.

        Returns:
            What ends it, in a `with` statement.

        Raises:
            ConfigError: Nothing can be written there, or there are no such steps.
            StateError: What was recorded until now can not be written.

        Example:
            >>> with handle.trace("trace.json"):  # doctest: +SKIP
            ...     train(steps=20)
        """
        tracer = self.engine.tracer
        if path is None:
            tracer.stop()
            return nullcontext()
        return tracer.start(path, steps)

    def save_profile(self, path: str | Path) -> None:
        """Write what steps were measured to be like, for `compressa simulate`. Collective.

        It is of the last `schedule.profile_steps` steps, and of the slowest rank. Rank 0 writes.

        Args:
            path: Of a JSON file.

        Raises:
            StateError: No step was measured yet, or rank 0 can not write; on every rank.

        Example:
            >>> handle.save_profile("profile.json")  # doctest: +SKIP
        """
        saving.save_profile(self.engine, self.config, self.next_step, self._link, Path(path))

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: residuals, factors and the step.

        It is rank-local: the keys begin with the rank, so that torch's distributed checkpoint
        keeps every rank's part (this object is a `Stateful`).

        Returns:
            The live tensors, 1-D and in the dtypes in which they are kept, and the step as int64[].

        Raises:
            CompressaError: The engine has failed.
        """
        self._settle()
        return saving.state_dict(self.engine, self.next_step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what this rank's `state_dict` gave; residuals may be kept in another dtype now.

        Args:
            state_dict: That, as it was.

        Raises:
            StateError: It is another rank's, or another model's.
        """
        self._settle()
        self.next_step = saving.load_state_dict(self.engine, state_dict)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: one file per rank and a manifest. Collective.

        Args:
            path: A folder on a file system that all ranks share.

        Raises:
            StateError: Some rank could not write, or replicas differ; on every rank.
        """
        self._settle()
        self.integrity.settle(self.next_step)
        saving.save(self.engine, Path(path), self.next_step, self._link)

    def load(self, path: str | Path) -> None:
        """Read a checkpoint of this model, of any number of ranks. Collective.

        If it is of as many ranks, algorithms are chosen by the figures that it was saved with, and
        not by the file that `exchange.link` names now, so that the run repeats its bits.

        Args:
            path: The folder that `save` was given.

        Raises:
            StateError: It cannot be read, or is of another model or compressor; on every rank.
        """
        self._settle()
        self.next_step, link = saving.load(self.engine, Path(path))
        if link is not None:
            self._go_on_with(link)

    def switch(self, source: Source, at_step: int | None = None) -> int:
        """Compress in another way from a step on. Collective; call it between two steps.

        Residuals go over to the new compressors; what those do not keep is added to the first
        gradient, so that nothing is lost. A checkpoint of a later step goes with the new
        configuration.

        Args:
            source: A TOML file's path, a mapping, or a `Config`. Only how gradients are compressed
                can change: compressor, rules, feedback, momentum, warmup (whose steps count from
                step 0) and dense_below. What else it says must be what is in force.
            at_step: The first step; at least two ahead, as it is if not given.

        Returns:
            The first step.

        Raises:
            ConfigError: The configuration is wrong, or differs between ranks; on every rank.
            StateError: The step is too near, or another rank can not switch; on every rank.

        Example:
            >>> handle.switch({"compressor": "int8"}, at_step=1000)  # doctest: +SKIP
        """
        if self._quiesce is not None:
            self._quiesce()
        step = self.next_step + STEPS_AHEAD if at_step is None else at_step
        self.config = switch(self.engine, self.config, source, self.next_step, step)
        return step

    def reform(
        self, survivors: dist.ProcessGroup | Sequence[int], *, afresh: bool = False
    ) -> int | None:
        """Go on without ranks that were lost, with this model and its residuals. Collective.

        To be called on all survivors after an error, with `engine.recover = true`. The step that
        failed has left no trace in the residuals, and is the next one: run it again. What survivors
        owe is multiplied by P'/P, so that it keeps its share of the mean; what the lost ranks
        owed is lost. DDP goes on over the new group, its `process_group` from now on: it makes its
        buckets anew and broadcasts buffers there. Statistics begin anew.

        Args:
            survivors: Their ranks in the default group, the same list on each; or, where the store
                that the ranks were started with is lost, the group of a new `init_process_group`.
                (torch's own `new_group` takes all ranks, or counts its groups differently on those
                that were not in it, and later ones never come together.)
            afresh: Whether compressors begin anew, and nothing is taken back or owed: for callers
                that bring all survivors to the same values themselves.

        Returns:
            None if all have the same parameters. Else the survivors had not all finished the
            same step, and the returned rank of the new group has the parameters, buffers and
            optimizer state that all must take over before they go on; see `compressa.broadcast`.

        Raises:
            ConfigError: The list is not one of ranks, or not this rank's.
            StateError: There is nothing to go back to: go on from a checkpoint. On every rank, if
                the survivors have come too far apart.
            TransportError: A survivor is lost, or does not come; it can be called again.

        Example:
            >>> source = handle.reform([0, 2])  # doctest: +SKIP
            >>> group = model.process_group     # doctest: +SKIP
        """
        model = None if self._model is None else self._model()
        if self._model is not None and model is None:
            raise StateError("handle.reform: the model does not exist any more")
        check_recoverable(self.engine)
        if not self._retired:
            self.engine.retire()
            self._retired = True
            self._end(GIVE_UP_S)  # the other survivors wait for this rank
        made = reform(self.engine, self.config, self.next_step, survivors, afresh=afresh)
        self.engine, self.group, self.next_step = made.engine, made.ranks, made.step
        self.integrity = Integrity(made.engine, self.config, self._model)
        self.engine.adopt(self._link.costs(self.config.schedule.pace_bits_per_s))
        self._retired = False
        self._close_at_exit()
        if model is not None:
            model._update_process_group(made.ranks)
        return made.source

    def close(self) -> None:
        """End all threads. Nothing can be submitted afterwards, and no model trained with it.

        Raises:
            TransportError: The network library does not let go of a lost connection; what it
                holds stays until the process ends.
        """
        self._end(CLOSE_S)
        self.engine.tracer.stop()

    def _end(self, wait_s: float) -> None:
        atexit.unregister(self._at_exit)
        self.integrity.part()
        self.engine.close(wait_s)

    def _close_at_exit(self) -> None:
        """Threads that wait inside the network library must end before the interpreter does."""
        self._at_exit = partial(_close_at_exit, weakref.ref(self), os.getpid())
        atexit.register(self._at_exit)

    def check(self) -> None:
        """Raise what keeps the next step from being trained, if anything does.

        Raises:
            ConfigError: The file that `exchange.link` names is missing, and no checkpoint was
                loaded that has its figures.
            CompressaError: The engine has failed.
        """
        if self._link.missing is not None:
            self._link.check()
        self.engine.check()

    def _go_on_with(self, link: AgreedLink) -> None:
        """Choose algorithms by the figures of a checkpoint."""
        before, self._link = self._link, link
        lacking = before.figures is None and link.figures is not None
        if self.config.exchange.link is not None and before != link and not lacking:
            known = "by the checkpoint's figures" if link.figures else "without figures, as before"
            warnings.warn(
                f"exchange.link: algorithms are chosen {known}, and not by those of "
                f"{self.config.exchange.link}, so that the run repeats its bits",
                ConfigWarning,
                stacklevel=3,
            )
        self.engine.adopt(link.costs(self.config.schedule.pace_bits_per_s))

    def _settle(self) -> None:
        """Have state be final: nothing is under way, and what a skipped step sent is back."""
        if self._quiesce is not None:
            self._quiesce()
        self.engine.settle()


def _close_at_exit(reference: weakref.ref[Handle], process: int) -> None:
    handle = reference()
    if handle is not None and os.getpid() == process:  # a forked child has no threads to end
        handle.close()
