"""Switching: all ranks compress in another way from a step on, or none; see `Handle.switch`."""

from __future__ import annotations

import json

from compressa.compressor import Compressor
from compressa.config import Config, Source, assign, load_config, recompressed
from compressa.engine.compilation import compile_on_all_ranks
from compressa.engine.engine import Engine
from compressa.engine.start.startup import check_alike
from compressa.errors import StateError

STEPS_AHEAD = 2


def switch(engine: Engine, config: Config, source: Source, next_step: int, step: int) -> Config:
    """Have other compressors in force from a step on. Collective.

    Args:
        engine: Whose compressors.
        config: The settings in force.
        source: Of the new ones.
        next_step: The step that begins next.
        step: The first with the new ones.

    Returns:
        The new settings.

    Raises:
        ConfigError: They are wrong, or differ between ranks; on every rank.
        StateError: The step is too near, or another rank can not switch; on every rank.
    """
    wanted: list[tuple[Config, dict[str, Compressor]]] = []

    def prepare() -> str:
        if step < next_step + STEPS_AHEAD:
            raise StateError(
                f"step {step} is too near: the next step is {next_step}, and a switch "
                f"takes {STEPS_AHEAD} steps' notice; use {next_step + STEPS_AHEAD}"
            )
        new = recompressed(config, load_config(source))
        compressors = assign(new, engine.parameters)
        engine.attempt(compressors)
        wanted.append((new, compressors))
        own = {"step": step, "next_step": next_step, "config": new.canonical()}
        return json.dumps({**own, "library": new.plugin_versions()})

    told = [json.loads(text) for text in engine.session.call_on_all("handle.switch", prepare)]
    check_alike(told, "", "call handle.switch alike on every rank")
    ((new, compressors),) = wanted
    compile_on_all_ranks(engine.session, engine.parameters, compressors, new)
    engine.switch(compressors, step)
    return new
