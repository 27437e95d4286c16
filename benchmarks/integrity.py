"""What it costs to compare replicas: the same steps with and without, in turn, in one run.

    torchrun --nproc-per-node 2 -m benchmarks.integrity

Replicas are compared in every step here, so that the cost can be told from noise; as configured by
default, one step in a hundred bears it. Perceptrons of 4.2 and 25 million parameters, int8.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.paired import WIDTH, compared, perceptron, report
from compressa.config import Config

_LAYERS = (4, 24)
_PAIRS = 10


def lines() -> Iterator[str]:
    """Measure each model, and say what was found."""
    for layers in _LAYERS:
        off, on = (
            perceptron({"compressor": "int8", "integrity": {"every": every}}, layers)
            for every in (0, 1)
        )
        found = compared(off, on, pairs=_PAIRS)
        share = (found.ratio - 1) / Config().integrity.every
        yield (
            f"{layers * (WIDTH + 1) * WIDTH / 1e6:.1f} M parameters: step "
            f"{1e3 * found.off_s:.1f} ms; compared in every step, {found.text}; by default "
            f"{share:.3%} of the run"
        )


if __name__ == "__main__":
    report(lines())
