"""Handle: what `register_comm_hook` returns."""

from __future__ import annotations

import atexit
import json
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from compressa import checkpoint
from compressa.compressor import Compressor
from compressa.config import (
    Config,
    ConfigWarning,
    Source,
    assign,
    first_difference,
    load_config,
    recompressed,
)
from compressa.engine import process_groups
from compressa.engine.compilation import compile_together
from compressa.engine.engine import CLOSE_S, Engine
from compressa.engine.link_file import Shared
from compressa.engine.stats import Stats
from compressa.errors import ConfigError, StateError
from compressa.hooks.integrity import Integrity
from compressa.hooks.profiles import save_profile
from compressa.hooks.reform import check_recoverable, reform
from compressa.hooks.together import together

_STEP = "step"
_STEPS_AHEAD = 2
_REFORM_WAIT_S = 0.5  # for threads that wait for the lost: the other survivors wait for this rank


class Handle:
    """Statistics, checkpoints, switches and the end of one registration.

    Residuals are *rank-local*: every rank keeps what it has not yet sent. `save` and `load`
    are collective and handle that; `state_dict` gives this rank's part only.
    """

    def __init__(
        self,
        engine: Engine,
        config: Config,
        groups: Sequence[dist.ProcessGroup],
        model: weakref.ref[DistributedDataParallel],
        quiesce: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self._model = model
        self._quiesce = quiesce
        self._engine = engine
        self._groups = list(groups)
        self._deadline_s = config.exchange.deadline_s
        self._retired = self._closed = False
        self._link = Shared() if engine.control is None else engine.control.link
        self.next_step = 0
        self.integrity = Integrity(engine, config, model)
        self.trace(config.trace.path, config.trace.steps)
        self._end_at_exit()

    @property
    def engine(self) -> Engine:
        """What combines the gradients."""
        return self._engine

    def stats(self) -> Stats:
        """Return what was measured on this rank since registration."""
        return self._engine.stats()

    def trace(
        self, path: str | Path | None, steps: tuple[int, int] | None = None
    ) -> AbstractContextManager[object]:
        """Record where the time of each step goes on this rank, unit by unit, from now on.

        The file is for ui.perfetto.dev, and for `compressa trace summary`. It is written when
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
        tracer = self._engine.tracer
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
        save_profile(self, self._link, self._together, Path(path))

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: residuals, factors and the step.

        It is rank-local: the keys begin with the rank, so that torch's distributed checkpoint
        keeps every rank's part (this object is a `Stateful`). The tensors are the live ones.
        """
        self._settle()
        prefix = f"rank{self._engine.transport.rank}/"
        state = {prefix + key: vector for key, vector in self._engine.state.vectors.items()}
        return {**state, prefix + _STEP: torch.tensor(self.next_step)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what this rank's `state_dict` gave; residuals may be kept in another dtype now.

        Raises:
            StateError: It is another rank's, or another model's.
        """
        self._settle()
        prefix = f"rank{self._engine.transport.rank}/"
        vectors = self._engine.state.vectors
        due = {prefix + key for key in vectors} | {prefix + _STEP}
        if due != state_dict.keys():
            raise StateError(
                f"this state dict is not rank {self._engine.transport.rank}'s of this model and "
                "configuration: state is rank-local, use handle.save and handle.load to change "
                f"the number of ranks (first difference: {min(due ^ state_dict.keys())!r})"
            )
        values = {
            key: checkpoint.converted(key, state_dict[prefix + key], vector)
            for key, vector in vectors.items()
        }
        step = checkpoint.checked_step(state_dict[prefix + _STEP])
        checkpoint.fill(self._engine.state, values)
        self.next_step = step

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: one file per rank and a manifest. Collective.

        Args:
            path: A folder on a file system that all ranks share.

        Raises:
            StateError: Some rank could not write, or replicas differ; on every rank.
        """
        folder = Path(path)
        self._settle()
        self.integrity.settle(self.next_step)

        def write() -> str:
            return checkpoint.write_rank(folder, self._rank, self._engine.state)

        digests = self._together("handle.save", write)
        parameters = self._engine.parameters

        def finish() -> str:
            if self._rank == 0:
                link = self._link.record()
                checkpoint.write_manifest(folder, self.next_step, digests, parameters, link)
            return ""

        self._together("handle.save, its manifest", finish)

    def load(self, path: str | Path) -> None:
        """Read a checkpoint of this model, of any number of ranks. Collective.

        If it is of as many ranks, algorithms are chosen by the figures that it was saved with, and
        not by the file that `exchange.link` names now, so that the run repeats its bits.

        Raises:
            StateError: It cannot be read, or is of another model or compressor; on every rank.
        """
        folder = Path(path)
        self._settle()
        size = self._engine.transport.size

        state = self._engine.state
        values: dict[str, torch.Tensor] = {}

        def read() -> str:
            manifest = checkpoint.read_manifest(folder, self._engine.parameters)
            values.update(checkpoint.read_state(folder, manifest, state, self._rank, size))
            Shared.saved(manifest.link, folder / checkpoint.MANIFEST)
            return manifest.model_dump_json(include={"step", "ranks", "link"})

        answer = json.loads(self._together("handle.load", read)[0])
        # Every rank could read its part: only now does any of them change.
        checkpoint.fill(state, values)
        self.next_step = int(answer["step"])
        if answer["ranks"] == size:
            self._go_on_with(Shared.saved(answer["link"], folder / checkpoint.MANIFEST))

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
        step = self.next_step + _STEPS_AHEAD if at_step is None else at_step
        wanted: list[tuple[Config, dict[str, Compressor]]] = []

        def prepare() -> str:
            if step < self.next_step + _STEPS_AHEAD:
                raise StateError(
                    f"step {step} is too near: the next step is {self.next_step}, and a switch "
                    f"takes {_STEPS_AHEAD} steps' notice; use {self.next_step + _STEPS_AHEAD}"
                )
            config = recompressed(self.config, load_config(source))
            compressors = assign(config, self._engine.parameters)
            self._engine.attempt(compressors)
            wanted.append((config, compressors))
            own = {"step": step, "next_step": self.next_step, "config": config.canonical()}
            return json.dumps({**own, "library": config.plugin_versions()})

        answers = [json.loads(text) for text in self._together("handle.switch", prepare)]
        for rank, answer in enumerate(answers):
            difference = first_difference(answers[0], answer)
            if difference is not None:
                path, first, value = difference
                raise ConfigError(
                    f"the ranks differ in {path}: rank 0 would switch with {first!r}, rank {rank} "
                    f"with {value!r}; call handle.switch alike on every rank"
                )
        self.config, compressors = wanted[0]
        engine = self._engine
        compile_together(engine.parameters, compressors, self.config, engine.lane, engine.control)
        self._engine.switch(compressors, step)
        return step

    def reform(self, survivors: dist.ProcessGroup | Sequence[int]) -> int | None:
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
        model = self._model()
        if model is None:
            raise StateError("handle.reform: the model does not exist any more")
        check_recoverable(self._engine)
        if not self._retired:
            self._engine.retire()
            self._retired = True
            self._end(_REFORM_WAIT_S)
        process_groups.release_groups(self._groups)
        made = reform(self._engine, self.config, self.next_step, survivors)
        self._engine, self._groups, self.next_step = made.engine, made.groups, made.step
        self.integrity = Integrity(made.engine, self.config, self._model)
        self._engine.adopt(self._link.costs(self.config.schedule.pace_bits_per_s))
        self._retired = self._closed = False
        self._end_at_exit()
        model._update_process_group(made.ranks)  # type: ignore[no-untyped-call]
        return made.source

    def close(self) -> None:
        """End all threads. The model must not be trained with this hook afterwards.

        Raises:
            TransportError: The network library does not let go of a lost connection; what it
                holds stays until the process ends.
        """
        self._end()
        process_groups.release_groups(self._groups)
        self._engine.tracer.stop()

    def _end(self, wait_s: float = CLOSE_S) -> None:
        if not self._closed:
            self._closed = True
            atexit.unregister(self._at_exit)
            self.integrity.part()
            self._engine.close(wait_s)

    def _end_at_exit(self) -> None:
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
        self._link.check()
        self._engine.check()

    def _go_on_with(self, link: Shared) -> None:
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
        self._engine.adopt(link.costs(self.config.schedule.pace_bits_per_s))

    def _settle(self) -> None:
        """Have state be final: nothing is under way, and what a skipped step sent is back."""
        if self._quiesce is not None:
            self._quiesce()
        self._engine.settle()

    @property
    def _rank(self) -> int:
        return self._engine.transport.rank

    def _together(self, what: str, work: Callable[[], str]) -> list[str]:
        return together(self._engine.control, what, work, self._deadline_s)


def _close_at_exit(reference: weakref.ref[Handle], process: int) -> None:
    handle = reference()
    if handle is not None and os.getpid() == process:  # a forked child has no threads to end
        handle.close()
