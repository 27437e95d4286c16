"""Reader: a trace back from its file, which comes from outside and is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from compressa import files
from compressa.errors import ConfigError
from compressa.tracing.events import NO_UNIT, Span, Stage, Trace, Wait

_MOST_BYTES = 1 << 30
_Time = Annotated[FiniteFloat, Field(ge=0, le=1e18)]
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Part(BaseModel):
    # Viewers and people may add to a trace what they like.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Args(_Part):
    step: _Count
    unit: Annotated[int, Field(ge=NO_UNIT, lt=1 << 63)] = NO_UNIT
    exchange: _Count = 0
    waits_for: Wait | None = Field(default=None, alias="for")
    size_bytes: _Count = Field(default=0, alias="bytes")
    peers: _Count = 0
    sending_us: _Time | None = None
    need: _Count = 0
    parameters: tuple[str, ...] = ()
    cpu_us: _Time | None = None
    core_us: _Time | None = None
    calls_us: _Time = 0


class _Complete(_Part):
    ph: Literal["X"]
    cat: Stage
    name: str
    ts: _Time
    dur: _Time
    args: _Args

    @model_validator(mode="after")
    def _waits_for_something(self) -> Self:
        if self.cat == "queued" and self.args.waits_for is None:
            raise ValueError('what is queued must say "for" what')
        return self


class _Step(_Part):
    step: _Count


class _StepBegins(_Part):
    ph: Literal["i"]
    cat: Literal["step"]
    ts: _Time
    args: _Step


class _Ends(_Part):
    ph: Literal["i"]
    cat: Literal["end"]
    ts: _Time


class _Names(_Part):
    ph: Literal["M"]


class _About(_Part):
    format: Literal["compressa.trace"]
    format_version: Literal[1]
    rank: _Count
    ranks: _Count
    unix_s: _Count
    dropped_steps: _Count
    dropped_spans: _Count


_Instant = Annotated[_StepBegins | _Ends, Field(discriminator="cat")]
_Event = Annotated[_Complete | _Instant | _Names, Field(discriminator="ph")]


class _File(_Part):
    about: _About = Field(alias="otherData")
    events: list[_Event] = Field(alias="traceEvents")


def read(path: str | Path) -> Trace:
    """Read and check what a trace's `write` has written. Times count from `Trace.unix_s`.

    Raises:
        ConfigError: It cannot be read, or is no such file; the message names the place.
    """
    try:
        text = files.read(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {files.reason(error)}") from error
    try:
        file = _File.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_described(error.errors()[0])}") from error
    ends = [event.ts for event in file.events if isinstance(event, _Ends)]
    if len(ends) != 1:
        raise ConfigError(f"{path}: this trace should have one end, and has {len(ends)}")
    begun = [event for event in file.events if isinstance(event, _StepBegins)]
    about = file.about
    return Trace(
        about.rank,
        about.ranks,
        about.unix_s,
        tuple(_span(event) for event in file.events if isinstance(event, _Complete)),
        tuple(sorted(((event.args.step, event.ts / 1e6) for event in begun), key=lambda b: b[1])),
        ends[0] / 1e6,
        about.dropped_steps,
        about.dropped_spans,
    )


def _span(event: _Complete) -> Span:
    args = event.args
    sent_us = None if args.sending_us is None else event.ts + args.sending_us
    return Span(
        event.cat,
        event.name,
        args.step,
        event.ts / 1e6,
        event.dur / 1e6,
        args.unit,
        args.exchange,
        args.waits_for or "",
        args.size_bytes,
        args.peers,
        None if sent_us is None else sent_us / 1e6,
        args.need,
        args.parameters,
        _seconds(args.cpu_us),
        _seconds(args.core_us),
        args.calls_us / 1e6,
    )


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / 1e6


def _described(mistake: Any) -> str:
    place = ".".join(map(str, mistake["loc"])) or "the whole"
    return f"{place}: {mistake['msg']}; give a file that handle.trace, or trace.path, has written"
