"""The one contract table: every compressor that a configuration can name.

Documentation, configuration, conformance tests and benchmarks enumerate this table;
docs/extending.md shows all that a new compressor needs besides its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from compressa.aggregators.acpsgd import ACPSGD
from compressa.aggregators.chunked_topk import ChunkedTopK
from compressa.aggregators.gtopk import GTopK
from compressa.aggregators.intsgd import IntSGD
from compressa.aggregators.loco import LoCo
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
    Bf16,
    DeMo,
    Fp8,
    Fp16,
    Int2,
    Int4,
    Int8,
    Natural,
    NoCompression,
    OneBit,
    OneBitSGD,
    RandomK,
    SIDCo,
    TernGrad,
    Threshold,
    TopK,
)
from compressa.compressor import Compressor


class Family(StrEnum):
    """What kind of idea a compressor is, for people who choose; the order is that of lists."""

    CAST = "casts"
    QUANTISER = "quantisers"
    ONE_BIT = "one bit"
    SPARSE = "sparse"
    LOW_RANK = "low rank"
    TRANSFORM = "transforms"
    OTHER = "others"


@dataclass(frozen=True)
class Entry:
    """One row.

    Attributes:
        compressor: The class; its dataclass fields are the hyper-parameters.
        summary: One sentence for people who choose.
        paper: Where it is from.
        family: What kind of idea it is.
    """

    compressor: type[Compressor]
    summary: str
    paper: str = ""
    family: Family = Family.OTHER


_ROWS = (
    Entry(NoCompression, "The gradient as it is: the dense baseline.", "", Family.CAST),
    Entry(Fp16, "A cast to half precision: half the bytes.", "IEEE 754-2008", Family.CAST),
    Entry(
        Bf16,
        "A cast to bfloat16: half the bytes, the range of float32.",
        "Wang & Kanwar 2019",
        Family.CAST,
    ),
    Entry(
        Fp8,
        "Eight-bit floats and a scale per block: small values keep their precision.",
        "Micikevicius et al. 2022",
        Family.CAST,
    ),
    Entry(
        Int8,
        "Eight bits and a scale per block: a quarter of the bytes.",
        "Dettmers et al. 2022",
        Family.QUANTISER,
    ),
    Entry(
        Int4,
        "Four bits and a scale per block: an eighth of the bytes.",
        "Dettmers et al. 2022",
        Family.QUANTISER,
    ),
    Entry(
        Int2,
        "Two bits and a scale per block: a sixteenth of the bytes.",
        "Dettmers et al. 2022",
        Family.QUANTISER,
    ),
    Entry(
        Natural,
        "Random rounding to powers of two: nine bits, hardly any noise.",
        "Horvath et al. 2022",
        Family.QUANTISER,
    ),
    Entry(
        QSGD,
        "Random rounding against the norm of a block.",
        "Alistarh et al. 2017",
        Family.QUANTISER,
    ),
    Entry(
        TernGrad,
        "Three values at random: zero, or the block's clipped maximum with a sign.",
        "Wen et al. 2017",
        Family.QUANTISER,
    ),
    Entry(
        SharedTernGrad,
        "Three values at random, of a scale that all ranks share, summed on the way.",
        "Wen et al. 2017",
        Family.QUANTISER,
    ),
    Entry(
        LoCo,
        "Four bits each way, with an averaged residual of eight bits.",
        "Xie et al. 2024",
        Family.QUANTISER,
    ),
    Entry(
        IntSGD,
        "Integers of a scale that all ranks share, summed on the way.",
        "Mishchenko et al. 2021",
        Family.QUANTISER,
    ),
    Entry(
        OneBit,
        "The sign and a mean magnitude per block.",
        "Karimireddy et al. 2019",
        Family.ONE_BIT,
    ),
    Entry(
        OneBitSGD,
        "The sign, and the means of both signs per row of a matrix.",
        "Seide et al. 2014",
        Family.ONE_BIT,
    ),
    Entry(
        SignSGD,
        "The majority of the ranks' signs; needs a learning rate of its own.",
        "Bernstein et al. 2018",
        Family.ONE_BIT,
    ),
    Entry(TopK, "The largest elements and their indices.", "Aji & Heafield 2017", Family.SPARSE),
    Entry(
        GTopK,
        "The largest elements of the ranks' sum, on a tree: as few for many ranks as for two.",
        "Shi et al. 2019",
        Family.SPARSE,
    ),
    Entry(
        OkTopK,
        "The largest of the ranks' sum, by regions and thresholds: six words for each, at most.",
        "Li & Hoefler 2022",
        Family.SPARSE,
    ),
    Entry(
        DGC,
        "About k large elements, by a threshold from a sample.",
        "Lin et al. 2018",
        Family.SPARSE,
    ),
    Entry(
        SIDCo,
        "About k large elements, by a threshold from a fitted tail.",
        "Abdelmoniem et al. 2021",
        Family.SPARSE,
    ),
    Entry(
        Threshold,
        "Every element that is large enough, up to a limit.",
        "Dutta et al. 2020",
        Family.SPARSE,
    ),
    Entry(
        AdaComp,
        "What a repeated gradient would make the largest of its bin.",
        "Chen et al. 2018",
        Family.SPARSE,
    ),
    Entry(
        RandomK,
        "Random elements, the same on every rank; no indices sent.",
        "Stich et al. 2018",
        Family.SPARSE,
    ),
    Entry(
        ChunkedTopK,
        "Whole chunks of largest norm, the same on every rank; summed on the way.",
        "Han et al. 2024",
        Family.SPARSE,
    ),
    Entry(
        ScaleCom,
        "The largest elements of one rank in turn, the same on every rank.",
        "Chen et al. 2020",
        Family.SPARSE,
    ),
    Entry(
        PowerSGD,
        "Low-rank factors by one power iteration a step.",
        "Vogels et al. 2019",
        Family.LOW_RANK,
    ),
    Entry(
        ACPSGD,
        "One of two low-rank factors a step, in turn: a single all-reduce.",
        "Zhang et al. 2023",
        Family.LOW_RANK,
    ),
    Entry(
        THC,
        "Codes of rotated chunks, whose integers sum while compressed.",
        "Li et al. 2024",
        Family.TRANSFORM,
    ),
    Entry(
        DeMo,
        "The largest cosine coefficients of each tile of a matrix.",
        "Peng et al. 2024",
        Family.TRANSFORM,
    ),
)

COMPRESSORS: dict[str, Entry] = {row.compressor.name: row for row in _ROWS}
"""Every compressor of the library, by name; `compressa.plugins` has those of other packages."""
