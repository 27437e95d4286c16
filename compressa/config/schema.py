"""The JSON Schema of a configuration, for editors that complete and check TOML."""

from __future__ import annotations

from typing import Any

from compressa.config.model import Config


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12), with one branch per compressor.

    Combinations of settings are beyond a schema; `load_config` checks them.
    """
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
