"""Residuals in fewer bits than float32: what they look like in memory and in a checkpoint.

==========  =====================================================================  =============
kept as     tensor of n elements                                                   bytes each
==========  =====================================================================  =============
"float32"   float32[n]                                                             4
"bfloat16"  bfloat16[n], rounded to nearest, half to even                          2
"int8"      uint8[4 b + n], b = ceil(n / 256): b float32 scales, then n int8 codes  1.016
==========  =====================================================================  =============

"int8" is the blockwise code of `compressa.kernels.blockwise`, to nearest: 8 bits and a scale of
max / 127 for each block of 256. What is read or written begins at a block.
"""

from __future__ import annotations

from typing import Literal

import torch

from compressa.arrays import as_array
from compressa.errors import StateError
from compressa.kernels.blockwise import Form, dequantize_blockwise, quantize_blockwise

Width = Literal["float32", "bfloat16", "int8"]

BLOCK_ELEMS = 256
_FORM = Form(bits=8, block=BLOCK_ELEMS)
_SCALE_BYTES = 4
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.uint8}
_LARGEST = torch.finfo(torch.bfloat16).max


def zeros(elems: int, width: Width, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return a residual of so many elements that is zero, as the table above says.

    Args:
        elems: n.
        width: What it is kept as.
        device: Where it is.

    Example:
        >>> zeros(300, "int8").numel()
        308
    """
    scales = _SCALE_BYTES * _blocks(elems) if width == "int8" else 0
    return torch.zeros(scales + elems, dtype=_DTYPES[width], device=device)


def width_of(vector: torch.Tensor) -> Width:
    """Return how a residual is kept.

    Raises:
        StateError: It is no residual.
    """
    for width, dtype in _DTYPES.items():
        if vector.dtype is dtype:
            return width  # type: ignore[return-value]
    raise StateError(f"a tensor of {vector.dtype} is no residual")


def elems_of(vector: torch.Tensor) -> int:
    """Return how many elements a residual has."""
    length = vector.numel()
    if vector.dtype is not torch.uint8:
        return length
    return length - _SCALE_BYTES * -(-length // (BLOCK_ELEMS + _SCALE_BYTES))


def read(vector: torch.Tensor, start: int, out: torch.Tensor) -> None:
    """Write a part of a residual to `out`.

    Args:
        vector: The whole residual, in any of the three forms.
        start: First element of the part; of "int8", a multiple of 256.
        out: float32, as long as the part.
    """
    stop = start + out.numel()
    if vector.dtype is torch.uint8:
        scales, codes = _parts(vector, start, stop)
        dequantize_blockwise(as_array(codes), as_array(scales), as_array(out), form=_FORM)
    else:
        out.copy_(vector[start:stop])


def write(vector: torch.Tensor, start: int, values: torch.Tensor) -> None:
    """Replace a part of a residual.

    Args:
        vector: The whole residual, in any of the three forms.
        start: First element of the part; of "int8", a multiple of 256.
        values: float32, all finite, as long as the part; they may be changed.
    """
    stop = start + values.numel()
    if vector.dtype is torch.uint8:
        scales, codes = _parts(vector, start, stop)
        quantize_blockwise(as_array(values), as_array(codes), as_array(scales), form=_FORM)
    elif vector.dtype is torch.bfloat16:
        # The largest float32 values would be rounded to infinity.
        vector[start:stop].copy_(values.clamp_(-_LARGEST, _LARGEST))
    else:
        vector[start:stop].copy_(values)


def widened(vector: torch.Tensor) -> torch.Tensor:
    """Return a whole residual in float32: itself, if it is.

    Example:
        >>> kept = zeros(3, "int8")
        >>> write(kept, 0, torch.tensor([127.0, -2.4, 0.0]))
        >>> widened(kept).tolist()
        [127.0, -2.0, 0.0]
    """
    if vector.dtype is torch.float32:
        return vector
    out = torch.empty(elems_of(vector), device=vector.device)
    read(vector, 0, out)
    return out


def converted(vector: torch.Tensor, width: Width) -> torch.Tensor:
    """Return a residual in another form; itself, if it is in that form.

    Args:
        vector: The whole residual, in any of the three forms; all finite, and left as it is.
        width: The form; what it can not hold is rounded.
    """
    if vector.dtype is _DTYPES[width]:
        return vector
    result = zeros(elems_of(vector), width, vector.device)
    write(result, 0, widened(vector).clone())
    return result


def _blocks(elems: int) -> int:
    return -(-elems // BLOCK_ELEMS)


def _parts(vector: torch.Tensor, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    scales_bytes = _SCALE_BYTES * _blocks(elems_of(vector))
    scales = vector[:scales_bytes].view(torch.float32)
    first, last = start // BLOCK_ELEMS, _blocks(stop)
    return scales[first:last], vector[scales_bytes + start : scales_bytes + stop]
