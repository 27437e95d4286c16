"""Saving: what a handle writes of an engine's state and measurements; see `Handle`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from compressa import checkpoint
from compressa.aggregators.base import State
from compressa.config import Config
from compressa.engine.engine import Engine
from compressa.engine.measuring import profile_file
from compressa.engine.session import Session
from compressa.engine.start.link_file import AgreedLink
from compressa.engine.undo import handed_over
from compressa.errors import StateError
from compressa.parameters import ParameterInfo

_STEP = "step"


class Keeper(Protocol):
    """What keeps state on all ranks: an engine, the worker of a parameter server, or shards."""

    @property
    def session(self) -> Session:
        """Of its ranks."""

    @property
    def state(self) -> State:
        """This rank's."""

    @property
    def parameters(self) -> tuple[ParameterInfo, ...]:
        """By which the state is named."""


def state_dict(engine: Keeper, step: int) -> dict[str, torch.Tensor]:
    """Return this rank's state under keys that begin with the rank, and the next step.

    Args:
        engine: Whose state.
        step: The next step.

    Returns:
        The live 1-D tensors, in the dtypes in which they are kept, and the step as int64[].
    """
    prefix = f"rank{engine.session.rank}/"
    state = {prefix + key: vector for key, vector in engine.state.vectors.items()}
    return {**state, prefix + _STEP: torch.tensor(step)}


def load_state_dict(engine: Keeper, saved: Mapping[str, Any]) -> int:
    """Take back what `state_dict` gave; return the next step.

    Args:
        engine: Whose state; it is written in place.
        saved: Residuals may be in another dtype than they are kept in now.

    Raises:
        StateError: It is another rank's, or another model's; nothing has changed.
    """
    rank, vectors = engine.session.rank, engine.state.vectors
    prefix = f"rank{rank}/"
    due = {prefix + key for key in vectors} | {prefix + _STEP}
    if due != saved.keys():
        raise StateError(
            f"this state dict is not rank {rank}'s of this model and "
            "configuration: state is rank-local, use handle.save and handle.load to change "
            f"the number of ranks (first difference: {min(due ^ saved.keys())!r})"
        )
    values = {
        key: checkpoint.converted(key, saved[prefix + key], vector)
        for key, vector in vectors.items()
    }
    step = checkpoint.checked_step(saved[prefix + _STEP])
    checkpoint.fill(engine.state, values)
    return step


def save(engine: Keeper, folder: Path, step: int, link: AgreedLink) -> None:
    """Write a checkpoint. Collective.

    Args:
        engine: Whose state.
        folder: Of the checkpoint.
        step: The next step.
        link: By whose figures algorithms are chosen.

    Raises:
        StateError: Some rank could not write; on every rank.
    """
    session = engine.session

    def write() -> str:
        return checkpoint.write_rank(folder, session.rank, engine.state)

    digests = session.call_on_all("handle.save", write)

    def finish() -> None:
        checkpoint.write_manifest(folder, step, digests, engine.parameters, link.record())

    _on_first(session, "handle.save, its manifest", finish)


def load(engine: Keeper, folder: Path) -> tuple[int, AgreedLink | None]:
    """Read a checkpoint of any number of ranks. Collective.

    Args:
        engine: Whose state; it is written in place.
        folder: Of the checkpoint.

    Returns:
        The next step; and by whose figures to choose algorithms, if it was saved by as many ranks.

    Raises:
        StateError: Some rank could not read it; on every rank, and nothing has changed.
    """
    session, state = engine.session, engine.state
    values: dict[str, torch.Tensor] = {}

    def read() -> str:
        manifest = checkpoint.read_manifest(folder, engine.parameters)
        found = checkpoint.read_state(folder, manifest, state, session.rank, session.size)
        values.update(found)
        AgreedLink.saved(manifest.link, folder / checkpoint.MANIFEST)
        return manifest.model_dump_json(include={"step", "ranks", "link"})

    answer = json.loads(session.call_on_all("handle.load", read)[0])
    # Every rank could read its part: only now does any of them change.
    checkpoint.fill(state, values)
    alike = answer["ranks"] == session.size
    link = AgreedLink.saved(answer["link"], folder / checkpoint.MANIFEST) if alike else None
    return int(answer["step"]), link


def hand_over(before: State, after: State, gain: float) -> None:
    """Have a new world's state begin with that of a rank that goes on in it.

    Args:
        before: The rank's in the world before.
        after: In the new one; written in place.
        gain: P'/P, for P ranks before and P' now.
    """
    checkpoint.fill(after, handed_over(before, after, gain))


def save_profile(
    engine: Engine, config: Config, next_step: int, link: AgreedLink, path: Path
) -> None:
    """Write what all ranks have measured of their steps, on rank 0. Collective.

    Args:
        engine: Whose steps.
        config: The settings in force.
        next_step: The step that begins next.
        link: What is known of the network.
        path: Of a JSON file.

    Raises:
        StateError: No step was measured yet, or rank 0 can not write; on every rank.
    """
    session, planning, parameters = engine.session, engine.planning, engine.parameters

    def tell() -> str:
        return profile_file.measured(planning.profiler, parameters)

    texts = session.call_on_all("handle.save_profile", tell)

    def write() -> None:
        about = {
            "configuration": profile_file.configuration_of(config),
            "step": max(next_step - 1, 0),
            "threads": session.threads,
            "backend_sums": session.transport.sums,
            "lowers": session.transport.lowers,
            "link": link.figures,
        }
        file = profile_file.merged(texts, parameters, planning.unit_names, about)
        path.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")

    _on_first(session, "handle.save_profile, its file", write)


def _on_first(session: Session, what: str, write: Callable[[], None]) -> None:
    """Have rank 0 write, whose failure all ranks raise."""

    def work() -> str:
        if session.rank == 0:
            write()
        return ""

    session.call_on_all(what, work)
