"""Names that plans, records and reports share; light, so that a report needs no torch."""

from __future__ import annotations

DDP_FLOAT32 = "ddp-float32"
TORCH_FP16 = "torch-fp16"
TORCH_POWERSGD = "torch-powersgd"
BASELINES = (DDP_FLOAT32, TORCH_FP16, TORCH_POWERSGD)

UNSHAPED = "unshaped"

_SCALES = (("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9))


def link_bits_per_s(link: str | None) -> float | None:
    """Bits per second of a link name such as "100mbit" or "1gbit"; None for an unshaped one.

    Raises:
        ValueError: If the name is not a number followed by kbit, mbit or gbit.
    """
    if link is None or link == UNSHAPED:
        return None
    for suffix, scale in _SCALES:
        number = link.removesuffix(suffix)
        if number != link and number.replace(".", "", 1).isdigit():
            return float(number) * scale
    raise ValueError(f"{link!r} is no link: write it as 100mbit, 1gbit or {UNSHAPED}")
