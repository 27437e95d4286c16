"""Profiles for tests of simulations, made without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from compressa.config import load_config
from compressa.engine.measuring.profile_file import (
    ParameterRow,
    ProfileFile,
    UnitRow,
    configuration_of,
)


def profile(
    layers: Sequence[tuple[int, float, float]],
    *,
    backward_s: float,
    forward_s: float = 0.0,
    ranks: int = 2,
    units: Mapping[str, tuple[float, float]] | None = None,
    **more: Any,
) -> ProfileFile:
    """Return the profile of a model of one vector per layer; those of one size have a unit each.

    Args:
        layers: By layer: elements, when its gradient is ready, when the forward needs it.
        backward_s: Of the whole backward.
        forward_s: As in the file.
        ranks: As in the file.
        units: By unit name, seconds of its codec.
        more: Of the configuration; and fields of the file.
    """
    fields = {name: more.pop(name) for name in [*more] if name in ProfileFile.model_fields}
    full_bytes = 4 * min(elems for elems, _, _ in layers)  # a unit for each layer
    sizes = {"unit_bytes": full_bytes, "unit_payload_bytes": 1, "unit_dense_bytes": full_bytes}
    config: dict[str, Any] = {"dense_below": {"elems": 0}, "exchange": sizes}
    for key, value in more.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    rows = tuple(
        ParameterRow(
            name=f"l{i}", shape=(n,), dtype="float32", role="weight", ready_s=ready, need_s=need
        )
        for i, (n, ready, need) in enumerate(layers)
    )
    times = {row.name: (row.ready_s, row.need_s) for row in rows}
    known = units or {f"l{i}": (0.0, 0.0) for i in range(len(layers))}
    return ProfileFile.model_validate(
        {
            "configuration": configuration_of(load_config(config)),
            "step": 7,
            "ranks": ranks,
            "threads": 1,
            "backend_sums": False,
            "parameters": rows,
            "units": tuple(
                UnitRow(
                    name=name,
                    ready_s=times.get(name, (0.0, 0.0))[0],
                    need_s=times.get(name, (0.0, 0.0))[1],
                    encode_s=encode_s,
                    decode_s=decode_s,
                )
                for name, (encode_s, decode_s) in known.items()
            ),
            "forward_s": forward_s,
            "backward_s": backward_s,
            "loss_s": 0.0,
            "computing_s": backward_s + forward_s,
            "step_s": backward_s + forward_s,
            "versions": {},
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            **fields,
        }
    )
