"""One model per compressor, generated from the contract table.

The table's dataclasses are the only place where hyper-parameters, their defaults and their
bounds are written down. Here they become a union that is told apart by `name`, so that the
JSON Schema has a branch for each compressor. Those of other packages (`compressa.plugins`) are
branches like the others, but the package is imported only when a configuration names it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import (
    AliasChoices,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializationInfo,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticOmit, core_schema

from compressa import plugins
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS, Entry
from compressa.config.base import Section
from compressa.errors import ConfigError

# In a user's file no other rank can be meant; in code a rank is a process.
_ALIASES = {"approx_rank": "rank"}


class CompressorChoice(Section):
    """A compressor's name and hyper-parameters.

    Attributes:
        name: Its name in the contract table.
    """

    row: ClassVar[Entry]

    name: str

    def build(self) -> Compressor:
        """Return the compressor.

        Raises:
            ConfigError: The hyper-parameters do not go together.
        """
        # As attributes: a dump would turn a nested value into a mapping.
        values = {name: value for name, value in self if name != "name"}
        return self.row.compressor(**values)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe other names, too, of which pydantic names one."""
        found = handler(schema)
        settings = handler.resolve_ref_schema(found).get("properties", {})
        settings |= {new: settings[name] for name, new in _ALIASES.items() if name in settings}
        return found

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
    texts = field_texts(entry.compressor.__doc__ or "")
    fields: dict[str, Any] = {"name": (Literal[name], Field(description="Which compressor."))}
    fields |= {
        field.name: (
            hints[field.name],
            Field(
                _default(field),
                description=texts.get(field.name),
                validation_alias=_alias(field.name),
            ),
        )
        for field in dataclasses.fields(entry.compressor)
        if field.init
    }
    model = create_model(
        f"{entry.compressor.__name__}Choice",
        __base__=CompressorChoice,
        __module__=__name__,
        __doc__=entry.summary,
        **fields,
    )
    model.row = entry
    return model


def choice(name: str) -> CompressorChoice:
    """Return the choice of a compressor with its default hyper-parameters."""
    return CHOICES[name].model_validate({"name": name})


def _alias(name: str) -> AliasChoices | None:
    return AliasChoices(name, _ALIASES[name]) if name in _ALIASES else None


def _default(field: dataclasses.Field[Any]) -> Any:
    return ... if field.default is dataclasses.MISSING else field.default


def field_texts(doc: str) -> dict[str, str]:
    """Return the text of each entry under "Args:" or "Attributes:" of a Google docstring."""
    text = inspect.cleandoc(doc) + "\n"  # Python 3.13 has taken the indentation off already
    section = re.search(r"^(?:Args|Attributes):\n((?:(?: {4,}.*)?\n)+)", text, re.M)
    if section is None:
        return {}
    entries = re.findall(r"^ {4}(\w+): ((?:.|\n {5,})+)", section[1], re.M)
    return {name: " ".join(text.split()) for name, text in entries}


class _Choices(Mapping[str, type[CompressorChoice]]):
    """The model of each compressor that a configuration can name, made when it is asked for.

    Asking for the model of a plug-in that can not be used is a ConfigError.
    """

    def __init__(self) -> None:
        self._models: dict[str, type[CompressorChoice]] = {}

    def __getitem__(self, name: str) -> type[CompressorChoice]:
        if name not in self._models:
            own = COMPRESSORS.get(name)
            self._models[name] = choice_model(name, own) if own else _plugin_model(name)
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        yield from COMPRESSORS
        yield from plugins.plugins()

    def __len__(self) -> int:
        return len(COMPRESSORS) + len(plugins.plugins())

    def __contains__(self, name: object) -> bool:
        return name in COMPRESSORS or name in plugins.plugins()


CHOICES: Mapping[str, type[CompressorChoice]] = _Choices()
"""The model of each compressor, by name."""


def _plugin_model(name: str) -> type[CompressorChoice]:
    entry = plugins.load(name)
    try:
        model = choice_model(name, entry)
        model.model_rebuild()
    except Exception as error:  # annotations of another package
        raise ConfigError(
            f"{plugins.plugins()[name].title} has hyper-parameters that can not be read from a "
            f"configuration: {type(error).__name__}: {error}"
        ) from error
    return model


@dataclasses.dataclass(frozen=True)
class _Plugged:
    """Annotates the choice of a plug-in, which is imported no sooner than it is named."""

    name: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        dump = core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True)
        return core_schema.no_info_plain_validator_function(self._validate, serialization=dump)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        try:
            return handler(CHOICES[self.name].__pydantic_core_schema__)
        except ConfigError as error:
            raise PydanticOmit from error

    def _validate(self, value: object) -> CompressorChoice:
        try:
            model = CHOICES[self.name]
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return model.model_validate(value)


def _dump(chosen: CompressorChoice, info: SerializationInfo) -> dict[str, Any]:
    return chosen.model_dump(mode=info.mode)


class _ByName:
    """Annotates any compressor: told apart by name; a name alone stands for all defaults."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        # Asked for when a configuration is first read, not on import.
        models: dict[str, Any] = {name: CHOICES[name] for name in COMPRESSORS}
        for name in plugins.plugins():
            models[name] = Annotated[CompressorChoice, _Plugged(name)]
        branches = {name: handler.generate_schema(model) for name, model in models.items()}
        union = core_schema.tagged_union_schema(branches, discriminator="name")
        return core_schema.no_info_before_validator_function(_table, union)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        names = [*COMPRESSORS, *filter(_usable, plugins.plugins())]
        return {"anyOf": [handler(schema), {"type": "string", "enum": names}]}


def _table(value: object) -> object:
    name = value.get("name") if isinstance(value, Mapping) else value
    claim = plugins.shadowed().get(name) if isinstance(name, str) else None
    if claim is not None:
        warnings.warn(claim.problem, plugins.PluginWarning, stacklevel=2)
    return {"name": value} if isinstance(value, str) else value


def _usable(name: str) -> bool:
    try:
        return bool(CHOICES[name])
    except ConfigError:
        return False


if TYPE_CHECKING:
    AnyCompressor = CompressorChoice
else:
    AnyCompressor = Annotated[CompressorChoice, _ByName()]
