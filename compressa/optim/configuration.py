"""The configuration of an optimizer: what its paper says, under what the user says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compressa.config import Config, Source, load_config
from compressa.errors import ConfigError

Sections = Mapping[str, Any]


def accept(config: Config) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class Wanted:
    """What an optimizer asks of its engine.

    Attributes:
        usual: The paper's compressor and exchange, unless the user names another compressor.
        fixed: What follows from the optimizer's own arguments, whatever the user names.
        check: Raises ConfigError for settings with which it would be another algorithm.
    """

    usual: Sections = field(default_factory=dict)
    fixed: Sections = field(default_factory=dict)
    check: Callable[[Config], None] = accept


def configured(source: Source | None, wanted: Wanted) -> Config:
    """Return the configuration of an optimizer.

    Args:
        source: The user's, of which only what is set counts; None for the paper's.
        wanted: What is filled in, and what is put over it.

    Raises:
        ConfigError: It is wrong, or sets what the optimizer's arguments say.
    """
    own = load_config({} if source is None else source).model_dump(mode="json", exclude_unset=True)
    for section, values in wanted.fixed.items():
        for key, value in values.items():
            said = own.get(section, {}).get(key, value)
            if said != value:
                raise ConfigError(
                    f"{section}.{key} = {said!r}: the optimizer's own arguments say that, and make "
                    f"it {value!r}; leave it out of the configuration"
                )
    papers = load_config(wanted.usual).compressor.name
    other = "rules" in own or own.get("compressor", {}).get("name", papers) != papers
    return load_config(_merged([wanted.fixed, own] if other else [wanted.usual, own, wanted.fixed]))


def compressors_of(config: Config) -> set[str]:
    """Return the names of the compressors of a configuration, its warm-up's apart."""
    return {config.compressor.name, *(rule.compressor.name for rule in config.rules)}


def _merged(layers: list[Sections]) -> dict[str, Any]:
    """Return sections whose keys are those of all layers; the last one counts."""
    result: dict[str, Any] = {}
    for layer in layers:
        for section, values in layer.items():
            known = result.get(section)
            joined = isinstance(known, Mapping) and isinstance(values, Mapping)
            result[section] = {**known, **values} if joined and known else values
    return result
