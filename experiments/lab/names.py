"""Names that plans, records and reports share; light, so that a report needs no torch."""

from __future__ import annotations

DDP_FLOAT32 = "ddp-float32"
TORCH_FP16 = "torch-fp16"
TORCH_POWERSGD = "torch-powersgd"
BASELINES = (DDP_FLOAT32, TORCH_FP16, TORCH_POWERSGD)

UNSHAPED = "unshaped"
