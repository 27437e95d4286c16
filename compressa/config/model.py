"""The whole configuration."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from compressa.config.conflicts import conflicts
from compressa.config.mistakes import refuse
from compressa.config.settings import Settings
from compressa.plugins import versions


class Config(Settings):
    """Everything that can be set, with its defaults.

    Build it with `load_config`, which reports mistakes in words; the constructor raises
    pydantic's `ValidationError`.

    Example:
        >>> Config().exchange.unit_payload_bytes
        131072
    """

    @model_validator(mode="after")
    def _check(self) -> Config:
        found = conflicts(self)
        if found:
            refuse(found)
        return self

    def canonical(self) -> dict[str, Any]:
        """Return all settings that must agree on every rank, as plain JSON values.

        Defaults are filled in and sizes are numbers, so that two files that mean the same
        give the same values. Where traces are written and a link's file is may differ, and is
        left out: rank 0's file counts.
        """
        return self.model_dump(mode="json", exclude={"trace": True, "exchange": {"link"}})

    def plugin_versions(self) -> dict[str, str]:
        """Return the versions of the other packages whose compressors are named, by package."""
        choices = [self.compressor, self.warmup.compressor, *(r.compressor for r in self.rules)]
        choices += [self.pipeline.activations, self.pipeline.gradients, self.fsdp.weights]
        return versions(choice.name for choice in choices)


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12), with one branch per compressor.

    Combinations of settings are beyond a schema; `load_config` checks them.
    """
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
