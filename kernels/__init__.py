"""Arithmetic on arrays: what compressors do to every element, on the device that holds them.

Each algorithm has a public function here, which checks its arguments and specifies in NumPy what
it computes, and one implementation per kind of device (``cpu/``: numba, ``cuda/``: CUDA C++;
imported on first use). All give the same bits. Functions write into arrays that the caller owns,
release the GIL while they work, keep no state and know nothing of tensors, payload headers or
ranks.
"""

if __name__ != "compressa.kernels":
    raise ImportError(f"this package is compressa.kernels: import that, not {__name__!r}")

from ._arrays import array_at, block_count
from ._backends import KernelUnavailable, device_of, reference
from .adacomp import select_adacomp
from .bitpack import (
    check_increasing,
    check_indices,
    index_width,
    pack_bitmap,
    pack_bits,
    packed_bytes,
    unpack_bitmap,
    unpack_bits,
)
from .blockwise import Form, dequantize_blockwise, quantize_blockwise, sum_blockwise
from .blockwise_mean import BlockwiseMeans, Owned, Packed, average_blockwise, average_vectors
from .casts import narrow, sum_casts, widen
from .checksums import checksum
from .chunks import absorb_chunks, add_chunks, take_largest_chunks
from .dct import ChunkForm, add_coefficients, are_positions, keep_coefficients
from .dgc import most_selected, select_dgc
from .elias_fano import elias_fano_bytes, pack_increasing, unpack_increasing
from .feedback import absorb_residual, all_finite
from .fp8 import dequantize_fp8, quantize_fp8, sum_fp8
from .hadamard import Codebook, rotate_back, rotate_quantize, sum_codes
from .index_formats import index_bytes, pack_indices, smallest_format, unpack_indices
from .integers import round_to_integers, scale_integers
from .lowrank import (
    judge_rows,
    keep_directions,
    left_factor,
    low_rank_product,
    orthonormalize,
    right_factor,
    split_low_rank,
)
from .multi_tensor import (
    BlockwisePart,
    BlockwiseParts,
    BlockwiseVector,
    BlockwiseVectors,
    multi_tensor_dequantize,
    multi_tensor_quantize,
    multi_tensor_sum,
)
from .multi_tensor_sparse import (
    SparseVector,
    SparseVectors,
    check_sparse,
    multi_tensor_scatter,
    multi_tensor_top_k,
)
from .natural import natural_dequantize, natural_quantize, sum_natural
from .natural_dithering import Dithering, dither, undither
from .onebit import SignForm, sign_bytes, sign_dequantize, sign_quantize, sum_signs
from .onebit_sgd import group_sign_bytes, two_means_dequantize, two_means_quantize
from .philox import Noise, random_fractions, random_words
from .prefix import starts_with, write_prefix
from .select import select_above, select_at
from .sidco import select_sidco
from .sparse_parts import CountedPart, CountedParts, SparsePart, SparseParts
from .sparse_sum import sum_sparse
from .strata import multiply_by_strata, stratified_indices
from .topk import return_unsent, scatter_add, select_top_k

__all__ = [
    "BlockwiseMeans",
    "BlockwisePart",
    "BlockwiseParts",
    "BlockwiseVector",
    "BlockwiseVectors",
    "ChunkForm",
    "Codebook",
    "CountedPart",
    "CountedParts",
    "Dithering",
    "Form",
    "KernelUnavailable",
    "Noise",
    "Owned",
    "Packed",
    "SignForm",
    "SparsePart",
    "SparseParts",
    "SparseVector",
    "SparseVectors",
    "absorb_chunks",
    "absorb_residual",
    "add_chunks",
    "add_coefficients",
    "all_finite",
    "are_positions",
    "array_at",
    "average_blockwise",
    "average_vectors",
    "block_count",
    "check_increasing",
    "check_indices",
    "check_sparse",
    "checksum",
    "dequantize_blockwise",
    "dequantize_fp8",
    "device_of",
    "dither",
    "elias_fano_bytes",
    "group_sign_bytes",
    "index_bytes",
    "index_width",
    "judge_rows",
    "keep_coefficients",
    "keep_directions",
    "left_factor",
    "low_rank_product",
    "most_selected",
    "multi_tensor_dequantize",
    "multi_tensor_quantize",
    "multi_tensor_scatter",
    "multi_tensor_sum",
    "multi_tensor_top_k",
    "multiply_by_strata",
    "narrow",
    "natural_dequantize",
    "natural_quantize",
    "orthonormalize",
    "pack_bitmap",
    "pack_bits",
    "pack_increasing",
    "pack_indices",
    "packed_bytes",
    "quantize_blockwise",
    "quantize_fp8",
    "random_fractions",
    "random_words",
    "reference",
    "return_unsent",
    "right_factor",
    "rotate_back",
    "rotate_quantize",
    "round_to_integers",
    "scale_integers",
    "scatter_add",
    "select_above",
    "select_adacomp",
    "select_at",
    "select_dgc",
    "select_sidco",
    "select_top_k",
    "sign_bytes",
    "sign_dequantize",
    "sign_quantize",
    "smallest_format",
    "split_low_rank",
    "starts_with",
    "stratified_indices",
    "sum_blockwise",
    "sum_casts",
    "sum_codes",
    "sum_fp8",
    "sum_natural",
    "sum_signs",
    "sum_sparse",
    "take_largest_chunks",
    "two_means_dequantize",
    "two_means_quantize",
    "undither",
    "unpack_bitmap",
    "unpack_bits",
    "unpack_increasing",
    "unpack_indices",
    "widen",
    "write_prefix",
]
