"""Arithmetic on arrays."""
from .philox import random_words
from .bitpack import *
from .bitpack import pack_bits, unpack_bits, packed_bytes
from .blockwise import quantize_blockwise, dequantize_blockwise, code_bytes
