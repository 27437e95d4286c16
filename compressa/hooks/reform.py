"""Reform: survivors of a loss go on, with the same model and handle, under the next epoch.

What the step that failed has changed is taken back (`engine.undo`), so it can be repeated. All
that the survivors owe stays owed; only what the lost ranks owed is lost with them. The survivors
must agree on the step: one of them may have finished it that another could not. If that one has
not begun the next, it goes back as well, and needs the parameters of those who are behind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed as dist

from compressa.config import Config
from compressa.engine.engine import Engine
from compressa.engine.opening import start_engine
from compressa.engine.start import process_groups
from compressa.errors import StateError
from compressa.hooks.saving import hand_over


class Standing(NamedTuple):
    """How far a rank has come.

    Attributes:
        next_step: The step that it would run next.
        earliest_step: The earliest that it can go back to.
    """

    next_step: int
    earliest_step: int


class Reformed(NamedTuple):
    """What goes on.

    Attributes:
        engine: Combines gradients from now on.
        ranks: The process group of those who go on.
        step: The step to be run next.
        source: The first rank of the new world that has the parameters of that step, if others
            have later ones.
    """

    engine: Engine
    ranks: dist.ProcessGroup
    step: int
    source: int | None


def check_recoverable(engine: Engine) -> None:
    """Raise StateError if what a failed step left behind can not be taken back."""
    if engine.undo is None:
        raise StateError(
            "handle.reform needs a copy of what each step changes; set engine.recover = true, and "
            "go on from a checkpoint this time"
        )
    if engine.device_stream.device.type != "cpu":
        raise StateError(
            "handle.reform can not go on where gradients are on a GPU: what a transport that was "
            "ended has left there is not known; go on from a checkpoint"
        )


def reform(
    old: Engine,
    config: Config,
    next_step: int,
    survivors: dist.ProcessGroup | Sequence[int],
    *,
    afresh: bool = False,
) -> Reformed:
    """Start the engine of a new world from what is left of an old one. Collective.

    Args:
        old: The old world's engine, retired.
        config: Settings.
        next_step: What this rank would run next, had nothing failed.
        survivors: Who goes on: a process group, or ranks of the default one.
        afresh: Whether the state begins anew, at the latest step of all; nothing is taken back.

    Raises:
        StateError: Some rank can not go back as far as another must; on every rank.
        ConfigError: The ranks differ; on every rank.
        TransportError: One of them is lost, or does not come.
    """
    if isinstance(survivors, dist.ProcessGroup):
        return _go_on(old, config, next_step, survivors, afresh)
    ranks = process_groups.new_group_of(config, survivors, "handle.reform")
    try:
        made = _go_on(old, config, next_step, ranks, afresh)
    except BaseException:
        process_groups.release_groups([ranks])
        raise
    made.engine.session.keep(ranks)
    return made


def _go_on(
    old: Engine, config: Config, next_step: int, ranks: dist.ProcessGroup, afresh: bool
) -> Reformed:
    assert old.undo is not None
    own = _standing(old, next_step)
    engine = start_engine(
        config,
        ranks,
        old.parameters,
        old.compressors,
        device_stream=old.device_stream,
        caller="handle.reform",
    )
    with engine.session.closed_on_error():
        texts = engine.session.all_gather(
            json.dumps(own).encode(), "handle.reform", config.exchange.start_wait_s
        )
        standings = [Standing(*map(int, json.loads(text))) for text in texts]
        if afresh:
            engine.succeed(old)
            return Reformed(engine, ranks, max(s.next_step for s in standings), None)
        step = min(standing.next_step for standing in standings)
        _check_common_step(standings, step)
    if own.next_step > step:
        old.undo.restore()
    engine.succeed(old)
    gain = engine.session.size / old.session.size
    hand_over(old.state, engine.state, gain)
    ahead = any(standing.next_step > step for standing in standings)
    source = [standing.next_step for standing in standings].index(step) if ahead else None
    return Reformed(engine, ranks, step, source)


def _standing(engine: Engine, next_step: int) -> Standing:
    assert engine.undo is not None
    if engine.interrupted:
        return Standing(engine.step, engine.step)
    begun = engine.undo.step
    return Standing(next_step, next_step if begun is None else begun)


def _check_common_step(standings: Sequence[Standing], step: int) -> None:
    for rank, standing in enumerate(standings):
        if standing.earliest_step > step:
            raise StateError(
                f"the survivors can not go on together: rank {rank} can go back to step "
                f"{standing.earliest_step}, and others have not finished step {step}; go on from a "
                "checkpoint"
            )
