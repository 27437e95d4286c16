"""Every compressor under test: each row of the contract table, and forms that differ from it."""

from __future__ import annotations

from typing import Any

import pytest

from compressa.aggregators.acpsgd import ACPSGD
from compressa.aggregators.chunked_topk import ChunkedTopK
from compressa.aggregators.gtopk import GTopK
from compressa.aggregators.intsgd import IntSGD
from compressa.aggregators.oktopk import OkTopK
from compressa.aggregators.powersgd import PowerSGD
from compressa.aggregators.scalecom import ScaleCom
from compressa.aggregators.signsgd import SignSGD
from compressa.aggregators.terngrad_shared import SharedTernGrad
from compressa.aggregators.thc import THC
from compressa.codecs import (
    DGC,
    QSGD,
    AdaComp,
    Codec,
    Contraction,
    DeMo,
    Entropy,
    Fp8,
    Int2,
    Int4,
    Int8,
    Natural,
    OneBit,
    OneBitSGD,
    RandomK,
    SIDCo,
    TernGrad,
    Threshold,
    TopK,
)
from compressa.compressor import Compressor
from compressa.compressors import COMPRESSORS
from compressa.wrappers import DenseBelow, ErrorFeedback

# Small blocks, and densities at which a small vector keeps more than one element.
VARIANTS: dict[str, Compressor] = {
    "int8-small-blocks": Int8(block=32),
    "int4-small-blocks": Int4(block=10),
    "fp8-e5m2": Fp8(format="e5m2", block=32),
    "int8-maxmin": Int8(block=32, mapping="maxmin"),
    "int8-stochastic": Int8(block=64, rounding="stochastic"),
    "int4-maxmin-stochastic": Int4(block=32, mapping="maxmin", rounding="stochastic"),
    "int2-maxmin": Int2(block=12, mapping="maxmin"),
    "qsgd-dithering": QSGD(levels=16, block=64, norm="max"),
    "terngrad-unclipped": TernGrad(block=64, clip=0.0),
    "terngrad-shared-unclipped": SharedTernGrad(clip=0.0),
    "natural-dithering": Natural(levels=7, block=64),
    "natural-dithering-max": Natural(levels=3, block=24, norm="max"),
    "natural-dithering-fine": Natural(levels=70, block=1024),
    "onebit-small-blocks": OneBit(block=64),
    "onebit_sgd-odd-groups": OneBitSGD(group=27),
    "topk-bfloat16": TopK(density=0.2, value_dtype="bfloat16"),  # and a bitmap
    "topk-float16": TopK(density=0.05, value_dtype="float16", indices="bits"),
    "topk-all": TopK(density=1.0),
    "topk-elias-fano": TopK(density=0.2, indices="elias_fano"),
    "dgc-float16": DGC(density=0.05, value_dtype="float16", indices="bitmap"),
    "sidco-one-stage": SIDCo(density=0.1, stages=1),
    "threshold-of-largest": Threshold(threshold=0.3, unit="max", max_density=0.3),
    "threshold-in-rms": Threshold(threshold=1.0, unit="rms", value_dtype="bfloat16"),
    "adacomp-small-bins": AdaComp(bin_elems=8, max_density=0.5),
    "adacomp-little-room": AdaComp(bin_elems=8, max_density=0.05),
    "randomk-unbiased": RandomK(density=0.3, unbiased=True),
    "demo-few": DeMo(chunk=16, kept=3),
    "demo-all": DeMo(chunk=32, kept=1024),
    "demo-bfloat16": DeMo(chunk=16, kept=3, value_dtype="bfloat16"),
    "demo-float16": DeMo(kept=40, columns=64, value_dtype="float16"),
    "powersgd-rank-1": PowerSGD(approx_rank=1),
    "acpsgd-rank-1": ACPSGD(approx_rank=1),
    "intsgd-32": IntSGD(bits=32),
    "signsgd-alternate": SignSGD(ties="alternate"),
    "chunked-topk-small-chunks": ChunkedTopK(density=0.3, chunk=64),
    "gtopk-float16": GTopK(density=0.2, value_dtype="float16", indices="elias_fano"),
    "gtopk-all": GTopK(density=1.0),
    "oktopk-often": OkTopK(density=0.2, threshold_steps=2, region_steps=1),
    "scalecom-dense": ScaleCom(density=0.2),
    "scalecom-filtered": ScaleCom(density=0.2, beta=0.3),
    "thc-small-chunks": THC(chunk=256, levels=51, clip=3.0),
    "thc-without-feedback": THC(chunk=256, feedback=False),
}

ALL: dict[str, Compressor] = {
    **{name: row.compressor() for name, row in COMPRESSORS.items()},
    **VARIANTS,
}
"""What a configuration can name."""

# Codecs around codecs, which a configuration asks for by other settings than a name.
AROUND: dict[str, Compressor] = {
    "entropy-int8": Entropy(codec=Int8(block=32)),
    "entropy-int2": Entropy(codec=Int2(block=12, rounding="stochastic"), level=9),
    "entropy-topk": Entropy(codec=TopK(density=0.05)),
    "entropy-dgc": Entropy(codec=DGC(density=0.1)),
}


def with_feedback(compressor: Compressor) -> Compressor:
    """Add error feedback where a codec allows it."""
    if not isinstance(compressor, Codec) or not isinstance(compressor.bias(1 << 20), Contraction):
        return compressor
    return ErrorFeedback(codec=compressor)


def params(chosen: dict[str, Any]) -> list[Any]:
    """Return parameters for pytest with readable names."""
    return [pytest.param(value, id=name) for name, value in chosen.items()]


CODECS = params({name: c for name, c in {**ALL, **AROUND}.items() if isinstance(c, Codec)})
# Among ranks a row of the table goes by one form, of those cut at more indices the smaller.
_SMALLER = {
    "int8": "int8-small-blocks",
    "int4": "int4-small-blocks",
    "int2": "int2-maxmin",
    "onebit": "onebit-small-blocks",
    "demo": "demo-few",
    "threshold": "threshold-of-largest",
    "chunked_topk": "chunked-topk-small-chunks",
    "oktopk": "oktopk-often",
    "scalecom": "scalecom-dense",
    "thc": "thc-small-chunks",
}
# And some go another way than their row: they lose what is sent, share their bits, keep nothing.
_OTHERWISE = (
    "topk-float16",
    "randomk-unbiased",
    "gtopk-float16",
    "scalecom-filtered",
    "thc-without-feedback",
)
_FORMS = [_SMALLER.get(name, name) for name in COMPRESSORS] + [*_OTHERWISE]

COMPRESSORS_UNDER_TEST = params(
    {name: with_feedback(ALL[name]) for name in _FORMS}
    | {
        "entropy-int8": with_feedback(AROUND["entropy-int8"]),
        "int8-without-feedback": Int8(block=32),
        "dense-below": DenseBelow(compressor=ErrorFeedback(codec=TopK(density=0.05)), elems=100),
    }
)
