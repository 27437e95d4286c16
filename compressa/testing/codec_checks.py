"""What every codec owes, one property per function; `conformance.check_codec` runs them all."""

from __future__ import annotations

from dataclasses import replace

import torch

from compressa.codecs.base import Biased, Codec, Contraction, Draw, Fixed, Unbiased
from compressa.testing.inputs import generator
from compressa.testing.memory import Guarded, require, same_bits

DRAW = Draw(seed=11, step=3, parameter=1, start=0, rank=0)
_FILLS = (0x00, 0xFF)
_ROUNDING = 2.0**-24  # half a unit in the last place of float32
_SMALLEST = 2.0**-149
_SMALLEST_NORMAL = 2.0**-126


def encoded(codec: Codec, x: torch.Tensor, draw: Draw = DRAW) -> torch.Tensor:
    """Return the payload of `x`, having checked what encoding owes.

    It has the declared size and nothing is written past it; every byte is written, so that it
    does not depend on what was in memory; `x` stays as it is.

    Args:
        codec: Encodes it.
        x: float32[n], contiguous.
        draw: Counter of the random bits.

    Returns:
        uint8[length], a copy.

    Raises:
        AssertionError: Encoding owes one of these.
    """
    name, elems = codec.name, x.numel()
    payloads = []
    for fill in _FILLS:
        memory, before = Guarded(codec.wire_bytes(elems), torch.uint8, fill), x.clone()
        length = codec.encode(x, memory.tensor, draw)
        require(memory.intact, f"{name}: encode wrote outside the payload of {elems} elements")
        require(same_bits(before, x), f"{name}: encode changed the gradient")
        due = codec.wire_bytes(elems)
        exact = isinstance(codec.size, Fixed)
        fits = length == due if exact else length <= due
        require(fits, f"{name}: {elems} elements took {length} bytes, declared are {due}")
        payloads.append(memory.tensor[:length].clone())
    same = torch.equal(payloads[0], payloads[1])
    require(same, f"{name}: a payload of {elems} elements holds bytes that encode did not write")
    return payloads[0]


def decoded(codec: Codec, payload: torch.Tensor, elems: int, draw: Draw = DRAW) -> torch.Tensor:
    """Return the decoded vector, having checked that it does not depend on `out`'s contents.

    Args:
        codec: Decodes it.
        payload: uint8[length], as `encoded` gives it.
        elems: n.
        draw: The counter that it was encoded with.

    Returns:
        float32[n].

    Raises:
        AssertionError: It does, or something else was written to.
        PayloadError: The codec refuses the payload.
    """
    results = []
    for fill in _FILLS:
        out = Guarded(elems, torch.float32, fill)
        codec.decode(payload, out.tensor, draw)
        require(out.intact, f"{codec.name}: decode wrote outside of {elems} elements")
        results.append(out.tensor.clone())
    sentence = f"{codec.name}: decode left some of {elems} elements as they were"
    require(same_bits(results[0], results[1]), sentence)
    return results[0]


def check_stays_small(codec: Codec, x: torch.Tensor, what: str) -> None:
    """Zero decodes to zero, and subnormal numbers are not amplified.

    Args:
        codec: What is checked.
        x: float32[n], from `inputs.tiny_vectors`.
        what: Its name, for the message.

    Raises:
        AssertionError: The error is larger than what the declared bound leaves of such numbers.
    """
    out = decoded(codec, encoded(codec, x), x.numel()).double()
    # Random rounding may take a subnormal number up to what its format can hold.
    step = _SMALLEST if isinstance(codec.bias(x.numel()), Contraction) else _SMALLEST_NORMAL
    slack = step * x.numel() ** 0.5
    error, length = float((out - x.double()).norm()), float(x.double().norm())
    gain = _gain(codec, x.numel())
    sentence = f"{codec.name}: {what} of {x.numel()} elements comes back with error {error:.3g}"
    require(error <= gain * length * (1 + 1e-6) + (slack if length else 0.0), sentence)


def _gain(codec: Codec, elems: int) -> float:
    """Return by how much one draw's error may exceed the vector itself."""
    bound = codec.bias(elems)
    if isinstance(bound, Unbiased):
        return bound.omega + 1.0
    return bound.noise + 1.0 if isinstance(bound, Biased) else 1.0


def check_nonfinite(codec: Codec, elems: int) -> None:
    """A NaN or an infinity reaches the decoder, and no residual.

    Args:
        codec: What is checked.
        elems: Length of the float32 vectors.

    Raises:
        AssertionError: It is lost on the way, or stays in the residual.
    """
    for value in (torch.nan, torch.inf, -torch.inf):
        for index in {0, elems // 2, elems - 1}:
            x = torch.randn(elems, generator=generator(index))
            x[index] = value
            residual = torch.randn(elems, generator=generator(index + 1))
            _check_overflow(codec, x, residual, f"{value} at {index} of {elems}")
    # Each summand is finite, the sum is not.
    huge = torch.full((elems,), 3e38)
    _check_overflow(codec, huge, huge.clone(), f"an overflowing sum of {elems} elements")


def _check_overflow(codec: Codec, x: torch.Tensor, residual: torch.Tensor, what: str) -> None:
    before, payload = residual.clone(), torch.empty(codec.wire_bytes(x.numel()), dtype=torch.uint8)
    length = codec.encode_feedback(x, residual, payload, DRAW)
    out = decoded(codec, payload[:length], x.numel())
    lost = ~out.isfinite()
    require(bool(lost.any()), f"{codec.name}: {what} decodes to finite numbers")
    require(bool(residual.isfinite().all()), f"{codec.name}: {what} poisons the residual")
    kept = same_bits(residual[lost], before[lost])
    require(kept, f"{codec.name}: {what} changes the residual of elements that were not sent")


def check_feedback(
    codec: Codec, x: torch.Tensor, residual: torch.Tensor, loss_scale: float
) -> None:
    """Check p = x + s * residual = decoded + s * residual afterwards, and encode agrees.

    Each of p, the error and the two products is rounded once or twice in float32.

    Args:
        codec: What is checked.
        x: float32[n], contiguous; the gradient, multiplied by the loss scale.
        residual: float32[n], contiguous; unscaled. It stays as it is.
        loss_scale: The loss scale s.

    Raises:
        AssertionError: Something is lost between payload and residual.
    """
    name, elems = codec.name, x.numel()
    kept = Guarded(elems, torch.float32, 0)
    kept.tensor.copy_(residual)
    memory = Guarded(codec.wire_bytes(elems), torch.uint8, 0xFF)
    length = codec.encode_feedback(x, kept.tensor, memory.tensor, DRAW, loss_scale)
    require(memory.intact and kept.intact, f"{name}: encode_feedback wrote outside its memory")
    corrected = torch.add(x, residual, alpha=loss_scale)
    same = codec.fused.splits_feedback or torch.equal(
        memory.tensor[:length], encoded(codec, corrected)
    )
    require(same, f"{name}: encode_feedback and encode of the corrected gradient differ")
    out = decoded(codec, memory.tensor[:length], elems).double()
    if not out.isfinite().all():
        return  # too large for a cast; what becomes of it is checked as overflow
    after = out + loss_scale * kept.tensor.double()
    before = x.double() + loss_scale * residual.double()
    parts = x.abs().double() + loss_scale * residual.abs().double() + out.abs()
    bound = 6 * _ROUNDING * parts + 4 * loss_scale * _SMALLEST
    worst = float(((after - before).abs() - bound).max()) if elems else 0.0
    sentence = f"{name}: of {elems} elements, some lose {worst:.3g} between payload and residual"
    require(worst <= 0, sentence)


def check_decode_sum(codec: Codec, x: torch.Tensor) -> None:
    """Check that decode_sum gives the bits of decode_add, once for each payload, from zeros on.

    Args:
        codec: What is checked.
        x: float32[n], contiguous.

    Raises:
        AssertionError: It gives others.
    """
    elems, weight = x.numel(), 1.0 / 3.0
    draws = [DRAW, replace(DRAW, rank=1), replace(DRAW, rank=2)]
    vectors = zip((x, x.flip(0), -0.3 * x), draws, strict=True)
    payloads = [(encoded(codec, vector.contiguous(), draw), draw) for vector, draw in vectors]
    due = torch.zeros(elems)
    for payload, draw in payloads:
        codec.decode_add(payload, due, weight, draw)
    out = Guarded(elems, torch.float32, 0xFF)
    codec.decode_sum(payloads, out.tensor, weight)
    require(out.intact, f"{codec.name}: decode_sum wrote outside of {elems} elements")
    equal = out.tensor.view(torch.int32) == due.view(torch.int32)
    same = bool((equal | (out.tensor.isnan() & due.isnan())).all())
    require(same, f"{codec.name}: decode_sum is not what decode_add gives for {elems} elements")


def check_decode_add(codec: Codec, x: torch.Tensor) -> None:
    """Check decode_add = out + weight * decode, to the rounding of one product and one sum.

    Args:
        codec: What is checked.
        x: float32[n], contiguous.

    Raises:
        AssertionError: It is something else.
    """
    elems, weight = x.numel(), 1.0 / 3.0
    payload = encoded(codec, x)
    plain = decoded(codec, payload, elems).double()
    before = torch.randn(elems, generator=generator(5))
    out = Guarded(elems, torch.float32, 0)
    out.tensor.copy_(before)
    codec.decode_add(payload, out.tensor, weight, DRAW)
    require(out.intact, f"{codec.name}: decode_add wrote outside of {elems} elements")
    due = before.double() + weight * plain
    bound = 4 * _ROUNDING * (before.abs().double() + plain.abs()) + _SMALLEST
    close = (out.tensor.double() - due).abs() <= bound
    overflowed = ~plain.isfinite() & ~out.tensor.isfinite()  # in a cast that was too small
    right = bool((close | overflowed).all())
    require(right, f"{codec.name}: decode_add is not out + weight * decode for {elems} elements")
