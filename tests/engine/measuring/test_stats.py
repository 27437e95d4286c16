"""What was measured, as a person reads it."""

from __future__ import annotations

from compressa.engine.measuring.stats import CompressorStats, Stats


def test_it_is_said_in_a_line_and_one_for_each_compressor() -> None:
    own = CompressorStats(4_000_000, 1_000_000, 0.5, 0.25, 1.5)
    said = str(Stats(7, 8_000_000, 5_000_000, 5_100_000, 42, 0.75, 2.0, {"int8": own}))
    total, int8 = said.splitlines()
    assert total.startswith(
        "7 steps: 8.00 MB of gradients made 1.6 times smaller; 5.10 MB sent in 42"
    )
    assert total.endswith("backward waited for 2 s")
    assert int8 == (
        "  int8: 4.00 MB made 4.0 times smaller; encoding 0.5 s, decoding 0.25 s, on the wire 1.5 s"
    )
    assert str(Stats(0, 0, 0, 0, 0, 0.0, 0.0)).startswith("0 steps")
