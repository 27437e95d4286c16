"""Conformance: all that a compressor has to hold, in one call.

    from compressa.testing import check_compressor

    check_compressor(MyCompressor())

It raises AssertionError with a sentence that names the property, and is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from compressa.codecs.base import Codec, Contraction, Unbiased
from compressa.compressor import Compressor
from compressa.testing import (
    bias_checks,
    codec_checks,
    fact_checks,
    mass,
    size_checks,
    stream_checks,
    thread_checks,
)
from compressa.testing.compressor_checks import (
    RankChecks,
    exchanges_of,
    is_exact,
    keeps_residuals,
)
from compressa.testing.hostile import CodecFuzz, UnitFuzz
from compressa.testing.inputs import SIZES, tiny_vectors, vectors
from compressa.testing.memory import generators_untouched
from compressa.wrappers import ErrorFeedback

_SEED = 20
_RANGE_ELEMS = 256
_MEAN_RANKS = 3
_PAYLOADS, _MEASURED_PAYLOADS, _UNITS = 600, 60, 200


def check_compressor(compressor: Compressor | type[Compressor], *, most_ranks: int = 4) -> None:
    """Check everything that applies to a codec, a wrapper or an aggregator's compressor.

    A codec is checked by itself, and among ranks without and, if it is a contraction, with error
    feedback.

    Args:
        compressor: What to check; a class stands for its default hyper-parameters.
        most_ranks: Largest world.

    Raises:
        AssertionError: A property does not hold; the message says which.
    """
    built = _built(compressor)
    if isinstance(built, Codec):
        check_codec(built)
        if isinstance(built.bias(1 << 20), Contraction):
            check_among_ranks(ErrorFeedback(codec=built), most_ranks=most_ranks)
    check_among_ranks(built, most_ranks=most_ranks)


def check_codec(codec: Codec) -> None:
    """Check a codec by itself, on vectors of every kind and size.

    Declared facts, size, independence of what memory held before, error bound, random bits, what
    is not finite, feedback, accumulation, hostile payloads, threads, and the user's random
    generators.

    Raises:
        AssertionError: A property does not hold; the message says which.
    """
    name = codec.name
    with generators_untouched(name):
        _check_declared(codec)
        _do(name, fact_checks.check_codec_facts, codec)
        _do(name, size_checks.check_wire_bytes, codec)
        _do(name, check_empty, codec)
        for elems in SIZES:
            _check_vectors(codec, elems)
        _do(name, fact_checks.check_summable, codec)
        _do(name, stream_checks.check_streams, codec)
        _do(name, check_hostile, codec)
        _do(name, thread_checks.check_codec_threads, codec)
        _do(name, bias_checks.check_range, codec, _RANGE_ELEMS)


def check_among_ranks(compressor: Compressor, *, most_ranks: int = 4) -> None:
    """Check a compressor among 1 to `most_ranks` ranks, by every exchange that fits it.

    Equal bits on all ranks, independence of the order of arrival, dtypes and memory orders of
    gradients, state, overflow, hostile messages, threads, a declared bound of the mean's error; and
    for those with error feedback: no mass is lost in the long run, by skipped steps, by changes of
    world size or of the compressor; residuals of unused parameters wait.

    Args:
        compressor: What to check.
        most_ranks: Largest world.

    Raises:
        AssertionError: A property does not hold; the message says which.
    """
    name = compressor.name
    settled = compressor.at(max(compressor.breakpoints, default=0))
    with generators_untouched(name):
        _check_declared(compressor)
        exchanges = exchanges_of(compressor)
        for exchange in exchanges:
            whole, last = RankChecks(compressor, exchange), RankChecks(settled, exchange)
            for size in range(1, most_ranks + 1):
                _do(name, whole.replicas, size)
            for check in (whole.repeats, whole.order):
                _do(name, check)
            for check in (last.overflow, last.state, last.hostile_rounds):
                _do(name, check)
        for check in (RankChecks(settled).layouts, RankChecks(settled).dtypes):
            _do(name, check)
        _do(name, thread_checks.check_threads, settled)
        random = isinstance(settled, Codec) and bias_checks.is_random(settled)
        if random and not settled.shared_stream:
            _do(name, stream_checks.check_mean_of_ranks, settled)
        ranks = min(_MEAN_RANKS, most_ranks)
        _do(name, bias_checks.check_bias_of_mean, settled, SIZES[-1], ranks)
        if isinstance(settled.bias_of_mean(SIZES[-1], ranks), Unbiased):
            _do(name, stream_checks.check_ranks_apart, settled)
        _check_memory(compressor, settled, exchanges)


def check_empty(codec: Codec) -> None:
    """Nothing encodes to what `wire_bytes(0)` says, and decodes to nothing.

    Raises:
        AssertionError: It does not; the message names the codec.
    """
    payload = codec_checks.encoded(codec, torch.empty(0))
    codec_checks.decoded(codec, payload, 0)


def check_hostile(codec: Codec) -> None:
    """Hostile payloads decode within bounds or are refused, and cost no more memory than others.

    Some hundreds of bodies of one seed, and as many whole messages of units.

    Raises:
        AssertionError: One was neither decoded nor refused with PayloadError, memory beside the
            output was written, or more was allocated.
    """
    fuzz = CodecFuzz(codec, _SEED)
    fuzz.run(_PAYLOADS)
    fuzz.run_measured(_MEASURED_PAYLOADS)
    UnitFuzz(codec, _SEED).run(_UNITS)


def _built(compressor: Compressor | type[Compressor]) -> Compressor:
    if isinstance(compressor, Compressor):
        return compressor
    try:
        return compressor()
    except Exception as error:
        raise AssertionError(
            f"{compressor.__name__}() can not be made: {error}; hyper-parameters need defaults, or "
            "check an instance"
        ) from error


def _check_declared(compressor: Compressor) -> None:
    name = type(compressor).__name__
    for check in (
        fact_checks.check_dataclass,
        fact_checks.check_facts,
        fact_checks.check_round_trips,
        size_checks.check_payload_bytes,
    ):
        _do(name, check, compressor)


def _check_vectors(codec: Codec, elems: int) -> None:
    name, samples, tiny = codec.name, vectors(elems), tiny_vectors(elems)
    _do(name, bias_checks.check_bias, codec, elems)
    _do(name, codec_checks.check_nonfinite, codec, elems)
    for what, x in tiny.items():
        _do(name, codec_checks.check_stays_small, codec, x, what)
    for x in (*samples.values(), tiny["denormal"]):
        _do(name, codec_checks.check_decode_add, codec, x)
        _do(name, codec_checks.check_decode_sum, codec, x)
        for loss_scale in (1.0, 1024.0):
            given = x * loss_scale, 0.3 * x.flip(0), loss_scale
            _do(name, codec_checks.check_feedback, codec, *given)


def _check_memory(compressor: Compressor, settled: Compressor, exchanges: list[str]) -> None:
    """Check what is kept from step to step."""
    name, feedback = compressor.name, keeps_residuals(settled)
    if feedback:
        for exchange in exchanges:
            _do(name, RankChecks(settled, exchange).hold_zeros)
    if compressor.conserves_mass and (feedback or is_exact(settled)):
        for exchange in exchanges:
            _do(name, mass.check_mass, compressor, exchange)
        _do(name, mass.check_mass_of_run, compressor)


def _do(name: str, check: Callable[..., None], *arguments: Any) -> None:
    """Run a check; what it raises besides AssertionError is a finding too, with its place."""
    try:
        check(*arguments)
    except AssertionError:
        raise
    except Exception as error:
        promise = (check.__doc__ or check.__name__).partition("\n")[0]
        raise AssertionError(
            f'{name}: {type(error).__name__} ({error}) where this was checked: "{promise}"'
        ) from error
