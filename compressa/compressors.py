"""The one contract table: every compressor that a configuration can name.

Documentation, configuration, conformance tests and benchmarks enumerate this table. Adding a
compressor means its file, an export, and a row here.
"""

from __future__ import annotations

from dataclasses import dataclass

from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import Bf16, Fp16, Int4, Int8, NoCompression, OneBit, RandomK, TopK
from compressa.compressor import Compressor


@dataclass(frozen=True)
class Entry:
    """One row.

    Attributes:
        compressor: The class; its dataclass fields are the hyper-parameters.
        summary: One sentence for people who choose.
        paper: Where it is from.
    """

    compressor: type[Compressor]
    summary: str
    paper: str


_ROWS = (
    Entry(NoCompression, "The gradient as it is: the dense baseline.", ""),
    Entry(Fp16, "A cast to half precision: half the bytes.", "IEEE 754-2008"),
    Entry(Bf16, "A cast to bfloat16: half the bytes, the range of float32.", "Wang & Kanwar 2019"),
    Entry(
        Int8, "Eight bits and a scale per block: a quarter of the bytes.", "Dettmers et al. 2022"
    ),
    Entry(Int4, "Four bits and a scale per block: an eighth of the bytes.", "Dettmers et al. 2022"),
    Entry(OneBit, "The sign and a mean magnitude per block.", "Karimireddy et al. 2019"),
    Entry(TopK, "The largest elements and their indices.", "Aji & Heafield 2017"),
    Entry(
        RandomK, "Random elements, the same on every rank; no indices sent.", "Stich et al. 2018"
    ),
    Entry(PowerSGD, "Low-rank factors by one power iteration a step.", "Vogels et al. 2019"),
)

COMPRESSORS: dict[str, Entry] = {row.compressor.name: row for row in _ROWS}
