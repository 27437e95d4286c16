"""A configuration as TOML text that loads back to the same configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w

from compressa.config.model import Config


def config_toml(config: Config) -> str:
    """Return all settings as TOML, with defaults filled in.

    What is not set and has no default (such as where traces are written) is named in a comment.

    Example:
        >>> print(config_toml(Config()).splitlines()[2])
        [compressor]
    """
    return settings_toml(config.model_dump(mode="json"))


def settings_toml(settings: Mapping[str, Any]) -> str:
    """Return settings as TOML, and comments that name those which are None.

    Args:
        settings: Plain JSON values.

    Example:
        >>> print(settings_toml({"trace": {"steps": 5, "path": None}}), end="")
        [trace]
        steps = 5
        <BLANKLINE>
        # trace.path: not set
    """
    unset = [f"# {key}: not set\n" for key in _unset(settings)]
    return "\n".join(filter(None, [tomli_w.dumps(_without_none(settings)), "".join(unset)]))


def toml_line(key: str, value: Any) -> str:
    """Return a setting as TOML, without an end of the line.

    Args:
        key: Its name.
        value: A plain JSON value.

    Example:
        >>> toml_line("density", 1e-06)
        'density = 1e-06'
    """
    return tomli_w.dumps({key: value}).rstrip("\n")


def _unset(settings: Mapping[str, Any], table: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if value is None:
            yield table + key
        elif isinstance(value, Mapping):
            yield from _unset(value, f"{table}{key}.")


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
