"""An engine over all ranks, opened as registering a hook opens it, with no model above it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from compressa.config import assign, load_config
from compressa.engine.engine import Engine
from compressa.engine.opening import start_engine
from compressa.parameters import ParameterInfo


def opened_engine(config: Mapping[str, Any], elems: Mapping[str, int]) -> Engine:
    """Open an engine, which is to be closed. Collective.

    Args:
        config: Of compressa.
        elems: The number of elements of each parameter, by its name.
    """
    world = dist.group.WORLD
    assert world is not None
    settings = load_config(config)
    parameters = [ParameterInfo(i, name, (size,)) for i, (name, size) in enumerate(elems.items())]
    compressors = assign(settings, parameters)
    return start_engine(settings, world, parameters, compressors, caller="a benchmark")
