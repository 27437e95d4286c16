"""Hyper-parameters that cannot be are refused by every compressor and wrapper that takes them."""

from __future__ import annotations

from collections.abc import Callable
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
    AdaComp,
    DeMo,
    Entropy,
    Int4,
    Int8,
    OneBit,
    OneBitSGD,
    RandomK,
    SIDCo,
    TernGrad,
    Threshold,
    TopK,
)
from compressa.codecs.shrunk import Shrunk
from compressa.errors import ConfigError
from compressa.wrappers import (
    EF21,
    DensitySchedule,
    ErrorFeedback,
    FeedbackRule,
    MomentumCorrection,
    Warmup,
)

NAN, INF = float("nan"), float("inf")
SPARSE = ErrorFeedback(codec=TopK(density=0.01))

# What is made, of which of its settings any of some values is refused, and what is said.
SETTINGS: list[tuple[Callable[..., Any], str, list[Any], str]] = [
    (ACPSGD, "approx_rank", [0], "acpsgd: approx_rank must be at least 1"),
    (AdaComp, "bin_elems", [0], "adacomp: bin_elems must be"),
    (AdaComp, "max_density", [0.0, 1.1], "adacomp: max_density must be"),
    (ChunkedTopK, "chunk", [32, 100, 2048], "chunk"),
    (ChunkedTopK, "density", [0.0, 1.5], "density"),
    (DeMo, "chunk", [8, 48], "demo: chunk must be a power of two from 16 to 64, not (8|48)"),
    (DeMo, "value_dtype", ["float8"], "demo: value_dtype must be one of float32"),
    (DeMo, "kept", [0, 4097], "demo: kept must lie between 1 and 4096, not (0|4097)"),
    (DGC, "density", [0.0, 2.0], r"dgc: density must be in \(0, 1\]"),
    (DGC, "sample", [0.0, 1.5], r"dgc: sample must be in \(0, 1\]"),
    (EF21, "codec", [TernGrad()], "EF21 would not converge"),
    (Entropy, "codec", [Entropy(codec=Int8())], "not made shorter twice"),
    (ErrorFeedback, "codec", [RandomK(unbiased=True)], r"unbiased.*diverges.*feedback\.kind"),
    (FeedbackRule, "beta", [0.0], "beta must be above 0"),
    (FeedbackRule, "decay", [1.1], "decay must be from 0 to 1"),
    (FeedbackRule, "reset_steps", [-1], "reset_steps must not be negative"),
    (GTopK, "density", [0.0, 1.1], "gtopk: density"),
    (GTopK, "indices", ["gaps"], "gtopk: indices"),
    (GTopK, "value_dtype", ["int8"], "gtopk: value_dtype"),
    (Int4, "block", [0, -8, 7, 9, 4], "block must be"),
    (Int8, "block", [0, -8, 7, 9, 4], "block must be"),
    (IntSGD, "bits", [7], "bits must be 8, 16 or 32"),
    (OkTopK, "density", [0.0, 1.1], "oktopk: density"),
    (OkTopK, "region_steps", [0], "oktopk: region_steps must be at least 1"),
    (OkTopK, "threshold_steps", [0], "oktopk: threshold_steps must be at least 1"),
    (OneBit, "block", [0, 4, 12, -8], "multiple of 8"),
    (OneBitSGD, "group", [1, 7, -8], "group must be 0 or at least 8"),
    (PowerSGD, "approx_rank", [0], "approx_rank must be at least 1"),
    (RandomK, "density", [0.0, -1.0, 1.01, NAN], "density must be"),
    (ScaleCom, "beta", [0.0, 1.1], "beta"),
    (ScaleCom, "density", [0.0], "density"),
    (SharedTernGrad, "clip", [-1.0], "clip"),
    (Shrunk, "codec", [TopK()], "only an unbiased quantiser"),
    (SIDCo, "density", [0.0, 1.1], "sidco: density must be"),
    (SIDCo, "stages", [0], "sidco: stages must be"),
    (SignSGD, "ties", ["minus"], "ties must be"),
    (THC, "chunk", [300], "chunk"),
    (THC, "clip", [0.0, 17.0], "clip"),
    (THC, "levels", [14, 256], "levels"),
    (Threshold, "indices", ["delta"], "threshold: indices must be one of"),
    (Threshold, "max_density", [0.0], "threshold: max_density must be"),
    (Threshold, "threshold", [0.0, NAN, INF], "threshold: threshold must be positive"),
    (Threshold, "unit", ["mean"], "threshold: unit must be one of absolute, rms, max"),
    (TopK, "density", [0.0, -0.1, 1.5, NAN], "density must be"),
    (TopK, "indices", ["delta"], "topk: indices must be one of auto, bits"),
    (TopK, "value_dtype", ["float8"], "topk: value_dtype must be one of float32"),
]
# Those that go around others, or whose settings contradict each other.
TOGETHER: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (DeMo, {"chunk": 16, "kept": 257}, "demo: kept must lie between 1 and 256, not 257"),
    (Entropy, {"codec": Int8(), "level": 0}, "entropy: level must be in 1 to 9"),
    (Entropy, {"codec": Int8(), "level": 10}, "entropy: level must be in 1 to 9"),
    (ErrorFeedback, {"codec": TernGrad(), "scaled": True}, "no contraction"),
    (Threshold, {"threshold": 1.5, "unit": "max"}, "no element reaches 1.5 times the largest"),
    (MomentumCorrection, {"compressor": SPARSE, "factor": 1.0}, "factor must be between"),
    (MomentumCorrection, {"compressor": SPARSE, "clip_norm": 0.0}, "clip_norm must be"),
    (Warmup, {"compressor": Int8(), "steps": -1}, "must not be negative"),
    (
        DensitySchedule,
        {"compressor": ErrorFeedback(codec=Int8()), "steps": 4, "densities": (0.5,)},
        "has no density",
    ),
    (
        DensitySchedule,
        {"compressor": SPARSE, "steps": 1, "densities": (0.5, 0.1)},
        "at least as many steps",
    ),
    (DensitySchedule, {"compressor": SPARSE, "steps": 1, "densities": ()}, "one density"),
]
REFUSED = [(made, {name: v}, said) for made, name, values, said in SETTINGS for v in values]


@pytest.mark.parametrize(("made", "settings", "said"), [*REFUSED, *TOGETHER])
def test_what_cannot_be_is_refused(
    made: Callable[..., Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**settings)
