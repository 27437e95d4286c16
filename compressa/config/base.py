"""What all sections of the configuration share: how strictly they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema


class Section(BaseModel):
    """A table of the configuration: frozen, without unknown keys, types never converted."""

    # Deferred: validators are built when a configuration is first read, not on import.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )


@dataclass(frozen=True)
class Listed:
    """Reads a list into a tuple, so that sections can be compared and hashed.

    Attributes:
        or_one: A single value stands for a list of one.
    """

    or_one: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Put the conversion before the tuple's own validation."""
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Tell editors that a single value will do."""
        listed = handler(schema)
        return {"anyOf": [listed["items"], listed]} if self.or_one else listed

    def _read(self, value: object) -> object:
        if isinstance(value, list):
            return tuple(value)
        if self.or_one and not isinstance(value, tuple):
            return (value,)
        return value


@dataclass(frozen=True, eq=False)
class OneOf:
    """Takes a name of a table, as the table is when a configuration is read.

    Attributes:
        table: What there is, by name.
        besides: Names that stand for no row.
    """

    table: Mapping[str, object]
    besides: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        yield from self.besides
        yield from self.table

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Refuse other strings, as pydantic refuses what is not in a `Literal`."""
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Tell editors the names."""
        return {"type": "string", "enum": [*self]}

    def _known(self, name: str) -> str:
        if name not in [*self]:
            raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, self))})
        return name
