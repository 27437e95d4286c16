"""Codecs, one algorithm per file: a vector to really packed bytes, and back."""

from compressa.codecs.adacomp import AdaComp
from compressa.codecs.base import (
    Bias,
    Biased,
    Bounded,
    Codec,
    Contraction,
    Draw,
    Fixed,
    Range,
    Reduction,
    Unbiased,
)
from compressa.codecs.bf16 import Bf16
from compressa.codecs.demo import DeMo
from compressa.codecs.dgc import DGC
from compressa.codecs.entropy import Entropy
from compressa.codecs.fp8 import Fp8
from compressa.codecs.fp16 import Fp16
from compressa.codecs.int2 import Int2
from compressa.codecs.int4 import Int4
from compressa.codecs.int8 import Int8
from compressa.codecs.natural import Natural
from compressa.codecs.none import NoCompression
from compressa.codecs.onebit import OneBit
from compressa.codecs.onebit_sgd import OneBitSGD
from compressa.codecs.qsgd import QSGD
from compressa.codecs.randomk import RandomK
from compressa.codecs.sidco import SIDCo
from compressa.codecs.terngrad import TernGrad
from compressa.codecs.threshold import Threshold
from compressa.codecs.topk import TopK

__all__ = [
    "DGC",
    "QSGD",
    "AdaComp",
    "Bf16",
    "Bias",
    "Biased",
    "Bounded",
    "Codec",
    "Contraction",
    "DeMo",
    "Draw",
    "Entropy",
    "Fixed",
    "Fp8",
    "Fp16",
    "Int2",
    "Int4",
    "Int8",
    "Natural",
    "NoCompression",
    "OneBit",
    "OneBitSGD",
    "RandomK",
    "Range",
    "Reduction",
    "SIDCo",
    "TernGrad",
    "Threshold",
    "TopK",
    "Unbiased",
]
