"""Conformance: what a codec or a compressor has to hold, in one call.

    from compressa.testing import check_codec, check_compressor

    check_codec(MyCodec())
    check_compressor(ErrorFeedback(codec=MyCodec()))

Both raise AssertionError with a sentence that names the property. They are deterministic.
"""

from __future__ import annotations

import torch

from compressa.codecs.base import Codec
from compressa.compressor import Compressor
from compressa.testing import bias_checks, codec_checks, compressor_checks
from compressa.testing.inputs import SIZES, tiny_vectors, vectors
from compressa.testing.memory import generators_untouched


def check_codec(codec: Codec) -> None:
    """Check a codec by itself, on vectors of every kind and size.

    Size, independence of what memory held before, error bound, what is not finite, feedback,
    accumulation, hostile payloads, and the user's random generators.

    Raises:
        AssertionError: A property does not hold; the message says which.
    """
    with generators_untouched(codec.name):
        check_empty(codec)
        for elems in SIZES:
            samples, tiny = vectors(elems), tiny_vectors(elems)
            bias_checks.check_bias(codec, elems)
            codec_checks.check_nonfinite(codec, elems)
            codec_checks.check_hostile(codec, samples["gaussian"])
            for what, x in tiny.items():
                codec_checks.check_stays_small(codec, x, what)
            for x in (*samples.values(), tiny["denormal"]):
                codec_checks.check_decode_add(codec, x)
                residual = 0.3 * x.flip(0)
                for scale in (1.0, 1024.0):
                    codec_checks.check_feedback(codec, x * scale, residual, scale)


def check_empty(codec: Codec) -> None:
    """Nothing encodes to what `wire_bytes(0)` says, and decodes to nothing."""
    payload = codec_checks.encoded(codec, torch.empty(0))
    codec_checks.decoded(codec, payload, 0)


def check_compressor(compressor: Compressor, *, most_ranks: int = 4) -> None:
    """Check a compressor among 1 to `most_ranks` ranks, by every exchange that fits it.

    Equal bits on all ranks, independence of the order of arrival, overflow, and for those with
    error feedback: no mass is lost in the long run, by a skipped step, by a change of world
    size or by the end of a warm-up; residuals of unused parameters wait.

    Raises:
        AssertionError: A property does not hold; the message says which.
    """
    with generators_untouched(compressor.name):
        exchanges = compressor_checks.exchanges_of(compressor)
        for exchange in exchanges:
            for size in range(1, most_ranks + 1):
                compressor_checks.check_replicas(compressor, exchange, size)
            compressor_checks.check_repeats(compressor, exchange)
            compressor_checks.check_order(compressor, exchange)
            compressor_checks.check_overflow(compressor, exchange)
        feedback = compressor_checks.keeps_residuals(compressor)
        for exchange in exchanges:
            if feedback or compressor_checks.is_exact(compressor):
                compressor_checks.check_mass(compressor, exchange, (3, 2, 4))
                compressor_checks.check_warmup(compressor, exchange)
            if feedback:
                compressor_checks.check_hold_zeros(compressor, exchange)
