"""FSDP2 and HSDP: quantised reduce-scatter with feedback, all-gather of weights, and all-reduce."""

from compressa.integrations.fsdp.apply import apply_to_fsdp
from compressa.integrations.fsdp.handle import FSDPHandle, FSDPStats

__all__ = ["FSDPHandle", "FSDPStats", "apply_to_fsdp"]
