"""An engine over all ranks, opened as registering a hook opens it, with no model above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch.distributed as dist

from compressa.config import assign, load_config
from compressa.engine.engine import Engine
from compressa.engine.lanes import Lane
from compressa.engine.opening import close_engine, open_engine
from compressa.parameters import ParameterInfo


def opened_engine(
    config: Mapping[str, Any], elems: Mapping[str, int]
) -> tuple[Engine, Callable[[], None]]:
    """Open an engine; return it, and what ends it. Collective.

    Args:
        config: Of compressa.
        elems: The number of elements of each parameter, by its name.
    """
    world = dist.group.WORLD
    assert world is not None
    settings = load_config(config)
    parameters = [ParameterInfo(i, name, (size,)) for i, (name, size) in enumerate(elems.items())]
    engine, groups = open_engine(
        settings, assign(settings, parameters), parameters, Lane(), world, caller="a benchmark"
    )
    return engine, partial(close_engine, engine, groups)
