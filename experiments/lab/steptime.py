"""What a timed step consists of, and the most that compression could have gained there.

With F and B the times of forward and backward pass and C the time that a step's bytes take, a dense
step takes F + B + C_dense and no compressed one can take less than max(F + B, C_compressed), so

    bound = (F + B + C_dense) / max(F + B, C_compressed).

C_compressed is the busiest host's interface bytes at the link's rate: perfect overlap at line rate.
C_dense is the larger of the same for the baseline and of what the baseline's step took beyond
computing, so that a baseline which overlaps badly can not make a speed-up exceed its bound. The
optimizer step, the same on both sides, is left out of it. F and B are what they cost while every
rank computes (:mod:`lab.timing`); F has fetching the batch in it, which no compressor saves.
"""

from __future__ import annotations

from lab.records import TimeRecord


def compute_s(cell: TimeRecord) -> float:
    """Forward, backward and optimizer step."""
    return cell.forward_s + cell.backward_s + cell.optimizer_s


def exposed_comm_s(cell: TimeRecord) -> float:
    """What a step took beyond computing and coding; never below zero."""
    return max(0.0, cell.step_s - compute_s(cell) - (cell.codec_s or 0.0))


def sent_bytes(cell: TimeRecord) -> float | None:
    """Bytes per step: by the interface where it can tell, else as accounted."""
    return cell.bytes_accounted if cell.bytes_interface is None else cell.bytes_interface


def wire_s(cell: TimeRecord) -> float:
    """Seconds that the busiest host's bytes take at the link's rate; 0 when not shaped."""
    if cell.bytes_interface is None or cell.link_bits_per_s is None:
        return 0.0
    return cell.bytes_interface * 8.0 / cell.link_bits_per_s


def speedup(dense: TimeRecord, compressed: TimeRecord) -> float:
    """How many steps ``compressed`` takes in the time of one step of ``dense``."""
    return dense.step_s / compressed.step_s


def bound(dense: TimeRecord, compressed: TimeRecord) -> float:
    """The largest speed-up over ``dense`` that ``compressed`` could have; see the module."""
    dense_s = dense.forward_s + dense.backward_s + max(wire_s(dense), exposed_comm_s(dense))
    floor_s = max(compressed.forward_s + compressed.backward_s, wire_s(compressed))
    return dense_s / floor_s


def compared(baseline: str, dense: TimeRecord | None, compressed: TimeRecord) -> dict[str, float]:
    """A result row's columns about one baseline.

    Args:
        baseline: What the columns' names end with.
        dense: The baseline in the same place; None if there is none to compare with.
        compressed: What is compared with it.

    Returns:
        The speed-up, its bound and the share of it that was reached; empty without ``dense``.
    """
    if dense is None:
        return {}
    gained, most = speedup(dense, compressed), bound(dense, compressed)
    return {
        f"speedup_over_{baseline}": gained,
        f"bound_over_{baseline}": most,
        f"share_of_bound_over_{baseline}": gained / most,
    }
