"""A configuration as TOML text that loads back to the same configuration.

Written here and not by tomli-w, which writes no comments: a comment names each setting that is not
set, and would not be known of otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from compressa.config.model import Config


def config_toml(config: Config) -> str:
    """Return all settings as TOML, with defaults filled in.

    What is not set and has no default (such as where traces are written) is named in a comment.

    Example:
        >>> print(config_toml(Config()).splitlines()[0])
        [compressor]
    """
    blocks = []
    for name, value in config.model_dump(mode="json").items():
        if value is None:
            blocks.append(f"# [{name}]: not set\n")
        elif isinstance(value, list):
            blocks += [table_toml(f"[[{name}]]", item) for item in value]
        else:
            blocks.append(table_toml(f"[{name}]", value))
    return "\n".join(blocks)


def table_toml(header: str, settings: Mapping[str, Any]) -> str:
    """Return one table of a configuration.

    Args:
        header: Its first line.
        settings: Plain JSON values.

    Example:
        >>> print(table_toml("[compressor]", {"name": "topk", "density": 0.01}), end="")
        [compressor]
        name = "topk"
        density = 0.01
    """
    rows = [
        f"# {key}: not set" if value is None else f"{key} = {toml_value(value)}"
        for key, value in settings.items()
    ]
    return "\n".join([header, *rows, ""])


def toml_value(value: Any) -> str:
    """Return a plain JSON value, which is not None, as TOML.

    Example:
        >>> toml_value([True, "a", 1e-06])
        '[true, "a", 1e-06]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's strings are TOML's basic strings, but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{key} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {', '.join(pairs)} }}"
    return repr(value)
