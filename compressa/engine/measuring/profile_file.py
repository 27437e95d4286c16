"""ProfileFile: what a step was measured to be like, for `compressa simulate`.

It holds all that a step consists of besides the network: the configuration and the parameters, from
which units and their exchanges can be made for any number of ranks, and the times of each unit. Of
another configuration the units are others: what is known of parameters counts then.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    model_validator,
)

from compressa import files
from compressa.config import Config
from compressa.engine.measuring.profiler import Profiler
from compressa.engine.start.link_file import LinkFile
from compressa.errors import ConfigError, StateError
from compressa.parameters import ParameterInfo, Role
from compressa.schedulers import Profile, UnitTimes

_CALL = "handle.save_profile(FILE)"

_MOST_BYTES = 256 << 20
_LONGEST_S = 1e6
_MOST_ELEMS = 1 << 33
_MOST_ROWS = 1 << 17
Seconds = Annotated[FiniteFloat, Field(ge=0, le=_LONGEST_S)]
_Extent = Annotated[int, Field(ge=0, le=_MOST_ELEMS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ParameterRow(_Strict):
    """A parameter, when its gradient came, and when the next forward uses it (0: at once).

    Times are in seconds, from the beginning of backward and of forward.
    """

    name: str
    shape: Annotated[tuple[_Extent, ...], Field(max_length=16)]
    dtype: Literal["float32", "float64", "float16", "bfloat16"]
    role: Annotated[Role, Field(strict=False)]
    ready_s: Seconds
    need_s: Seconds

    @property
    def elems(self) -> int:
        """Number of elements of its shape."""
        return self.info(0).elems

    def info(self, index: int) -> ParameterInfo:
        """Return the parameter, with its index in the model."""
        return ParameterInfo(index, self.name, self.shape, getattr(torch, self.dtype), self.role)


class UnitRow(_Strict):
    """A unit that was measured, and its times in seconds; see `compressa.schedulers.UnitTimes`."""

    name: str
    ready_s: Seconds
    need_s: Seconds
    encode_s: Seconds
    decode_s: Seconds

    @property
    def times(self) -> UnitTimes:
        """The same as schedulers take them."""
        return UnitTimes(self.ready_s, self.need_s, self.encode_s, self.decode_s)


class ProfileFile(_Strict):
    """The whole file.

    `forward_s` is 0 where nobody has said it: the whole forward comes after all exchanges then.
    `loss_s` lies between a forward and its backward, and `computing_s` is what a step takes besides
    waiting for gradients: forward, loss, backward, the optimizer, and whatever else there is. All
    times are the longest of any rank's, and medians over steps.
    """

    format: Literal["compressa.profile"] = "compressa.profile"
    format_version: Literal[1] = 1
    configuration: dict[str, Any]
    step: Annotated[int, Field(ge=0, le=1 << 62)] = Field(description="that was measured last")
    ranks: Annotated[int, Field(ge=1, le=1 << 16)]
    threads: Annotated[int, Field(ge=1, le=1 << 10)] = Field(
        description="that encode and decode on a rank"
    )
    backend_sums: bool = Field(description="whether the transport could leave sums to a backend")
    lowers: bool = Field(default=False, description="whether it ran sums of plain values as tables")
    parameters: Annotated[tuple[ParameterRow, ...], Field(min_length=1, max_length=_MOST_ROWS)]
    units: Annotated[tuple[UnitRow, ...], Field(min_length=1, max_length=_MOST_ROWS)]
    forward_s: Seconds
    backward_s: Seconds
    loss_s: Seconds
    computing_s: Seconds
    step_s: Seconds
    link: Annotated[LinkFile | None, Field(strict=False)] = None
    versions: dict[str, str]
    timestamp: Annotated[AwareDatetime, Field(strict=False)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, rows in (("parameters", self.parameters), ("units", self.units)):
            names = [row.name for row in rows]
            if len(set(names)) < len(names):
                raise ValueError(f"two of the {what} have the same name")
        if sum(row.elems for row in self.parameters) > _MOST_ELEMS:
            raise ValueError(f"the parameters have more than {_MOST_ELEMS} elements")
        return self

    @property
    def infos(self) -> tuple[ParameterInfo, ...]:
        """The parameters, in the model's order."""
        return tuple(row.info(index) for index, row in enumerate(self.parameters))


class Measured(_Strict):
    """What one rank has measured; see `measured`."""

    numbers: tuple[FiniteFloat, ...]
    ready_s: tuple[Seconds, ...]
    need_s: tuple[Seconds, ...]
    loss_s: Seconds
    computing_s: Seconds
    step_s: Seconds


def measured(profiler: Profiler, parameters: Sequence[ParameterInfo]) -> str:
    """Return what this rank has measured, as JSON for `merged`.

    Args:
        profiler: Of the phase in force.
        parameters: In the model's order.

    Raises:
        StateError: No step was measured from its beginning to the next.
    """
    steps = profiler.steps()
    if not steps:
        raise StateError(
            "no step has been measured yet: train for some steps first, and for some more after "
            "compressors change"
        )
    return Measured(
        numbers=tuple(profiler.profile().numbers()),
        ready_s=tuple(profiler.came_s(parameter.name) for parameter in parameters),
        need_s=tuple(profiler.need_s(parameter.name) for parameter in parameters),
        loss_s=profiler.loss_s,
        computing_s=statistics.median(step_s - waited_s for step_s, waited_s in steps),
        step_s=statistics.median(step_s for step_s, _ in steps),
    ).model_dump_json()


def merged(
    texts: Sequence[str],
    parameters: Sequence[ParameterInfo],
    units: Sequence[str],
    about: Mapping[str, Any],
) -> ProfileFile:
    """Make the file of what all ranks have measured.

    Args:
        texts: By rank, from `measured`.
        parameters: In the model's order.
        units: Their names.
        about: The other fields of the file.

    Raises:
        StateError: A rank has told of something else.
    """
    try:
        rows = [Measured.model_validate_json(text) for text in texts]
        profile = Profile.merged([Profile.of(row.numbers) for row in rows])
        ready = [max(times) for times in zip(*(row.ready_s for row in rows), strict=True)]
        need = [max(times) for times in zip(*(row.need_s for row in rows), strict=True)]
        return ProfileFile(
            ranks=len(texts),
            parameters=tuple(_row(*known) for known in zip(parameters, ready, need, strict=True)),
            units=tuple(
                UnitRow(
                    name=name,
                    ready_s=times.ready_s,
                    need_s=times.need_s,
                    encode_s=times.encode_s,
                    decode_s=times.decode_s,
                )
                for name, times in zip(units, profile.units, strict=True)
            ),
            forward_s=profile.forward_s,
            backward_s=profile.backward_s,
            loss_s=max(row.loss_s for row in rows),
            computing_s=max(row.computing_s for row in rows),
            step_s=max(row.step_s for row in rows),
            versions={name: version(name) for name in ("compressa", "torch")},
            timestamp=datetime.now(UTC),
            **about,
        )
    except ValueError as error:
        raise StateError(f"the ranks have not measured the same: {error}") from error


def _row(parameter: ParameterInfo, ready_s: float, need_s: float) -> ParameterRow:
    return ParameterRow.model_validate(
        {
            "name": parameter.name,
            "shape": parameter.shape,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "role": parameter.role,
            "ready_s": ready_s,
            "need_s": need_s,
        }
    )


def configuration_of(config: Config) -> dict[str, Any]:
    """Return what the file keeps of a configuration: nothing of where files are."""
    canonical: dict[str, Any] = json.loads(json.dumps(config.canonical()))
    return canonical


def read(path: str | Path, where: str = "") -> ProfileFile:
    """Read and check a file.

    Args:
        path: Where it is.
        where: What messages say before the path.

    Returns:
        The profile: times in seconds, sizes in bytes.

    Raises:
        ConfigError: It cannot be read, or is no such file; the message names the place.
    """
    try:
        text = files.read(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{where}{path}: cannot be read: {files.reason(error)}; write it with `{_CALL}`"
        ) from error
    fix = f"give a file that `{_CALL}` has written"
    return files.validated(ProfileFile, text, f"{where}{path}", fix)
