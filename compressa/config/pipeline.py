"""What crosses the edges of a pipeline, for `compressa.compress_edge`."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from compressa.codecs.base import Codec, Fixed
from compressa.compressor import Compressor, Granularity
from compressa.config.base import Section
from compressa.config.choices import AnyCompressor
from compressa.config.mistakes import Mistake
from compressa.config.sections import NONE, none


class Pipeline(Section):
    """What is sent between the stages of a pipeline; nothing is kept of what was not sent.

    Codecs only, whose payloads have one length and whose statistics span a block at most.
    """

    activations: AnyCompressor = Field(
        default_factory=none,
        description="How activations are compressed on their way to the next stage.",
        json_schema_extra=NONE,
    )
    gradients: AnyCompressor = Field(
        default_factory=none,
        description="How their gradients are compressed on their way back.",
        json_schema_extra=NONE,
    )
    differences: bool = Field(
        default=False,
        description="Whether activations are sent as differences from the last ones of the same "
        "training sample (AQ-SGD), which both stages keep; edge.samples then says before each step "
        "which these are.",
    )


def pipeline_conflicts(pipeline: Pipeline) -> Iterator[Mistake]:
    """Refuse what can not be on an edge."""
    for key in ("activations", "gradients"):
        compressor = getattr(pipeline, key).build()
        reason = _why_not(compressor)
        if reason:
            text = f'is "{compressor.name}", but {reason}; use int8, int4, fp8, bf16 or alike'
            yield Mistake(("pipeline", key, "name"), text)
    if pipeline.differences and pipeline.activations.name == "none":
        text = "is true, but activations are sent as they are; set pipeline.activations, or leave "
        yield Mistake(("pipeline", "differences"), f"{text}it out", (("pipeline", "activations"),))


def _why_not(compressor: Compressor) -> str:
    name = compressor.name
    if not isinstance(compressor, Codec):
        return f"{name} exchanges in rounds of all ranks, and an edge has one that sends"
    if not isinstance(compressor.size, Fixed):
        return (
            f"the length of a payload of {name} is not known beforehand, as a receive must be "
            "posted for it"
        )
    if compressor.granularity in (Granularity.PARAMETER, Granularity.MATRIX):
        return f"the statistics of {name} span a whole parameter, and an activation is none"
    return ""
