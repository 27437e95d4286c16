"""What FSDP2 brings from rank to rank, for `compressa.apply_to_fsdp`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from compressa.bias import TYPICAL_ELEMS
from compressa.codecs.base import Codec, Contraction
from compressa.config.base import Section
from compressa.config.choices import AnyCompressor
from compressa.config.mistakes import Mistake
from compressa.config.sections import NONE, none

_LEAST_OF_WEIGHTS = 0.5  # of their squared norm


class FSDP(Section):
    """What compressa.apply_to_fsdp compresses of a model of FSDP2."""

    gradients: Literal["auto", "shards", "replicas", "both"] = Field(
        default="auto",
        description="Between whom gradients are compressed. shards: those that a parameter is cut "
        "into; replicas: those that hold the same shards in HSDP; auto: replicas where there are "
        "any, else shards.",
    )
    weights: AnyCompressor = Field(
        default_factory=none,
        description="How weights come from the owners of shards, without feedback, such as int8. "
        "What a rule or dense_below exempts from compression comes as it is.",
        json_schema_extra=NONE,
    )


def fsdp_conflicts(fsdp: FSDP) -> Iterator[Mistake]:
    """Nothing makes up for what weights lose: all of them must come, and each time alike."""
    own = fsdp.weights.build()
    bias = own.bias(TYPICAL_ELEMS) if isinstance(own, Codec) else None
    if not (isinstance(bias, Contraction) and bias.delta >= _LEAST_OF_WEIGHTS):
        yield Mistake(
            ("fsdp", "weights", "name"),
            f'is "{own.name}", which loses most of some weights, or rounds them at random; use '
            "int8, fp8, int4, bf16, fp16 or none",
        )
