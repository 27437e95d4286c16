"""Handle: what `register_comm_hook` returns."""

from __future__ import annotations

import atexit
import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from compressa import checkpoint
from compressa.compressor import Compressor
from compressa.config import (
    Config,
    Source,
    assign,
    first_difference,
    load_config,
    recompressed,
)
from compressa.engine import startup
from compressa.engine.engine import Engine
from compressa.engine.stats import Stats
from compressa.errors import CompressaError, ConfigError, StateError

_STEP = "step"
_STEPS_AHEAD = 2


class Handle:
    """Statistics, checkpoints, switches and the end of one registration.

    Residuals are *rank-local*: every rank keeps what it has not yet sent. `save` and `load`
    are collective and handle that; `state_dict` gives this rank's part only.
    """

    def __init__(
        self, engine: Engine, config: Config, groups: Sequence[dist.ProcessGroup] = ()
    ) -> None:
        self.config = config
        self._engine = engine
        self._groups = list(groups)
        self._deadline_s = config.exchange.deadline_s
        self._closed = False
        self.next_step = 0
        # Threads that wait inside the network library must end before the interpreter does.
        self._at_exit = weakref.ref(self)
        atexit.register(_close_at_exit, self._at_exit)

    @property
    def engine(self) -> Engine:
        """What combines the gradients."""
        return self._engine

    def stats(self) -> Stats:
        """Return what was measured on this rank since registration."""
        return self._engine.stats()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: residuals, factors and the step.

        It is rank-local: the keys begin with the rank, so that torch's distributed checkpoint
        keeps every rank's part (this object is a `Stateful`). The tensors are the live ones.
        """
        self._engine.settle()
        prefix = f"rank{self._engine.transport.rank}/"
        state = {prefix + key: vector for key, vector in self._engine.state.vectors.items()}
        return {**state, prefix + _STEP: torch.tensor(self.next_step)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what this rank's `state_dict` gave; residuals may be kept in another dtype now.

        Raises:
            StateError: It is another rank's, or another model's.
        """
        self._engine.settle()
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
        checkpoint.fill(self._engine.state, values)
        self.next_step = int(state_dict[prefix + _STEP])

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: one file per rank and a manifest. Collective.

        Args:
            path: A folder on a file system that all ranks share.

        Raises:
            StateError: Some rank could not write; on every rank.
        """
        folder = Path(path)
        self._engine.settle()

        def write() -> str:
            return checkpoint.write_rank(folder, self._rank, self._engine.state)

        digests = self._together("checkpoint", write)
        parameters = self._engine.parameters

        def finish() -> str:
            if self._rank == 0:
                checkpoint.write_manifest(folder, self.next_step, digests, parameters)
            return ""

        self._together("manifest", finish)

    def load(self, path: str | Path) -> None:
        """Read a checkpoint of this model, of any number of ranks. Collective.

        Raises:
            StateError: It cannot be read, or is of another model or compressor; on every rank.
        """
        folder = Path(path)
        self._engine.settle()
        size = self._engine.transport.size

        state = self._engine.state
        values: dict[str, torch.Tensor] = {}

        def read() -> str:
            manifest = checkpoint.read_manifest(folder, self._engine.parameters)
            values.update(checkpoint.read_state(folder, manifest, state, self._rank, size))
            return str(manifest["step"])

        steps = self._together("checkpoint", read)
        # Every rank could read its part: only now does any of them change.
        checkpoint.fill(state, values)
        self.next_step = int(steps[0])

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

        answers = [json.loads(text) for text in self._together("switch", prepare)]
        for rank, answer in enumerate(answers):
            difference = first_difference(answers[0], answer)
            if difference is not None:
                path, first, value = difference
                raise ConfigError(
                    f"the ranks differ in {path}: rank 0 would switch with {first!r}, rank {rank} "
                    f"with {value!r}; call handle.switch alike on every rank"
                )
        self.config, compressors = wanted[0]
        self._engine.switch(compressors, step)
        return step

    def close(self) -> None:
        """End all threads. The model must not be trained with this hook afterwards.

        Raises:
            TransportError: The network library does not let go of a lost connection; what it
                holds stays until the process ends.
        """
        if not self._closed:
            self._closed = True
            atexit.unregister(_close_at_exit)
            self._engine.close()
            startup.release_groups(self._groups)

    @property
    def _rank(self) -> int:
        return self._engine.transport.rank

    def _together(self, what: str, work: Any) -> list[str]:
        """Do something on every rank; if it fails on one, it fails on all, with the reason."""
        own: dict[str, str | None] = {"error": None, "value": None}
        failure: Exception | None = None
        try:
            own["value"] = work()
        except Exception as error:  # the others must not wait for a rank that stumbled
            failure, own["error"] = error, str(error) or repr(error)
        control = self._engine.control
        text = json.dumps(own).encode()
        texts = [text] if control is None else control.all_gather(text, what, self._deadline_s)
        if isinstance(failure, CompressaError):
            raise failure
        for rank, answer in enumerate(map(json.loads, texts)):
            if answer["error"] is not None:
                raise StateError(f"rank {rank}: {answer['error']}") from failure
        return [json.loads(answer)["value"] for answer in texts]


def _close_at_exit(reference: weakref.ref[Handle]) -> None:
    handle = reference()
    if handle is not None:
        handle.close()
