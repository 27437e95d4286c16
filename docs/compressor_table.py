# python docs/compressor_table.py
"""Write the README's table of compressors from the contract table and what the classes declare.

Everything between `<!-- compressors:begin -->` and `<!-- compressors:end -->` in README.md is
worked out here; a new compressor appears by its row in `compressa.compressors`.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path

from compressa.aggregators import choose_exchange
from compressa.codecs import Codec, Contraction
from compressa.compressors import COMPRESSORS

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- compressors:begin -->", "<!-- compressors:end -->"
SHAPE = (1000, 1000)
_ELEMS = SHAPE[0] * SHAPE[1]
_RANKS = 4
_TITLES = ("name", "what is sent", "ratio", "exchange on 4 ranks", "summable", "bias", "paper")


def compressors_block() -> str:
    """Return what stands between the two comments."""
    rows = [list(_TITLES), ["---", "---", "---:", *["---"] * (len(_TITLES) - 3)]]
    for name, entry in COMPRESSORS.items():
        compressor = entry.compressor()
        ratio = 4 * _ELEMS / compressor.payload_bytes(SHAPE)
        facts = _codec_facts(compressor) if isinstance(compressor, Codec) else _own_facts()
        rows.append([f"`{name}`", entry.summary, f"{ratio:.1f}", *facts, entry.paper or "-"])
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _codec_facts(codec: Codec) -> list[str]:
    summable = "no" if codec.reduce is None else f"in {codec.reduce.dtype}".replace("torch.", "")
    return [choose_exchange(codec, _RANKS).replace("_", "-"), summable, _bias(codec)]


def _own_facts() -> list[str]:
    """Of an aggregator that is no codec: it exchanges and feeds back in its own way."""
    return ["all-reduce, its own", "in float32", "low rank; error feedback built in"]


def _bias(codec: Codec) -> str:
    """The bound that holds for every vector of the size, in words."""
    bias = codec.bias(_ELEMS)
    if not isinstance(bias, Contraction):
        return f"unbiased, omega = {bias.omega:.3g}"
    if bias.delta == 1.0:
        return "exact"
    if codec.error_feedback:
        return f"delta >= {_rounded(bias.delta, ROUND_FLOOR)}; error feedback"
    return f"relative error <= {_rounded(math.sqrt(1.0 - bias.delta), ROUND_CEILING)}"


def _rounded(bound: float, direction: str) -> Decimal:
    """Three digits, on the side on which the bound still holds."""
    return Context(prec=3, rounding=direction).create_decimal(bound)


def with_compressors(readme: str, block: str) -> str:
    """Return the README's text with the block between the comments.

    Raises:
        ValueError: It does not have the comments.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README must hold {BEGIN} and {END}, in this order")
    return f"{before}{BEGIN}\n\n{block}\n{END}{after}"


def main() -> None:
    """Bring the README up to date."""
    text = README.read_text(encoding="utf-8")
    README.write_text(with_compressors(text, compressors_block()), encoding="utf-8")


if __name__ == "__main__":
    main()
