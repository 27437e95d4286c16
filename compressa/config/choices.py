"""One model per compressor, generated from the contract table.

The table's dataclasses are the only place where hyper-parameters, their defaults and their
bounds are written down. Here they become a union that is told apart by `name`, so that the
JSON Schema has a branch for each compressor.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_type_hints

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS, Entry
from compressa.config.base import Section
from compressa.errors import ConfigError


class CompressorChoice(Section):
    """A compressor's name and hyper-parameters.

    Attributes:
        name: Its name in the contract table.
    """

    name: str

    def build(self) -> Compressor:
        """Return the compressor.

        Raises:
            ConfigError: The hyper-parameters do not go together.
        """
        return COMPRESSORS[self.name].compressor(**self.model_dump(exclude={"name"}))

    @model_validator(mode="after")
    def _check(self) -> CompressorChoice:
        try:
            self.build()
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


def choice_model(name: str, entry: Entry) -> type[CompressorChoice]:
    """Return the model of one row of the contract table.

    Args:
        name: The compressor's name.
        entry: Its row; the class's dataclass fields become the model's, with the texts of its
            docstring as descriptions.
    """
    hints = get_type_hints(entry.compressor, include_extras=True)
    texts = _field_texts(entry.compressor.__doc__ or "")
    fields: dict[str, Any] = {"name": (Literal[name], Field(description="Which compressor."))}
    fields |= {
        field.name: (hints[field.name], Field(_default(field), description=texts.get(field.name)))
        for field in dataclasses.fields(entry.compressor)
        if field.init
    }
    return create_model(
        f"{entry.compressor.__name__}Choice",
        __base__=CompressorChoice,
        __module__=__name__,
        __doc__=entry.summary,
        **fields,
    )


def choice(name: str) -> CompressorChoice:
    """Return the choice of a compressor with its default hyper-parameters."""
    return CHOICES[name].model_validate({"name": name})


def _default(field: dataclasses.Field[Any]) -> Any:
    return ... if field.default is dataclasses.MISSING else field.default


def _field_texts(doc: str) -> dict[str, str]:
    """Return the text of each entry under "Args:" or "Attributes:" of a Google docstring."""
    section = re.search(r"^ *(?:Args|Attributes):\n((?:(?: {8,}.*)?\n)+)", doc + "\n", re.M)
    if section is None:
        return {}
    entries = re.findall(r"^ {8}(\w+): ((?:.|\n {9,})+)", section[1], re.M)
    return {name: " ".join(text.split()) for name, text in entries}


CHOICES: dict[str, type[CompressorChoice]] = {
    name: choice_model(name, entry) for name, entry in COMPRESSORS.items()
}
"""The model of each compressor, by name."""


class _NameAlone:
    """Lets a compressor's name stand for the table with that name and all defaults."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_table, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "string", "enum": list(CHOICES)}]}


def _table(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


if TYPE_CHECKING:
    AnyCompressor = CompressorChoice
else:
    AnyCompressor = Annotated[
        Union[tuple(CHOICES.values())],  # noqa: UP007 - not known before the program runs
        Field(discriminator="name"),
        _NameAlone(),
    ]
