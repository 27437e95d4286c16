"""What every codec owes, one property per function; `conformance.check_codec` runs them all."""

from __future__ import annotations

import torch

from compressa.codecs.base import Codec, Draw, Fixed
from compressa.errors import PayloadError
from compressa.testing.inputs import generator
from compressa.testing.memory import Guarded, require, same_bits

DRAW = Draw(seed=11, step=3, parameter=1, start=0, rank=0)
_FILLS = (0x00, 0xFF)
_ROUNDING = 2.0**-24  # half a unit in the last place of float32
_SMALLEST = 2.0**-149


def encoded(codec: Codec, x: torch.Tensor, draw: Draw = DRAW) -> torch.Tensor:
    """Return the payload of `x`, having checked what encoding owes.

    It has the declared size and nothing is written past it; every byte is written, so that it
    does not depend on what was in memory; `x` stays as it is.
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
    """Return the decoded vector, having checked that it does not depend on `out`'s contents."""
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
    """Zero decodes to zero, and subnormal numbers are not amplified."""
    out = decoded(codec, encoded(codec, x), x.numel()).double()
    slack = _SMALLEST * x.numel() ** 0.5
    error, length = float((out - x.double()).norm()), float(x.double().norm())
    gain = max(_gain(codec, x.numel()), 1.0)
    sentence = f"{codec.name}: {what} of {x.numel()} elements comes back with error {error:.3g}"
    require(error <= gain * length * (1 + 1e-6) + (slack if length else 0.0), sentence)


def _gain(codec: Codec, elems: int) -> float:
    """Return by how much an error may exceed the vector itself: sqrt(omega) in the worst case."""
    omega = getattr(codec.bias(elems), "omega", 0.0)
    return float(omega) + 1.0 if omega else 1.0


def check_nonfinite(codec: Codec, elems: int) -> None:
    """A NaN or an infinity reaches the decoder, and no residual."""
    for value in (torch.nan, torch.inf, -torch.inf):
        for place in {0, elems // 2, elems - 1}:
            x = torch.randn(elems, generator=generator(place))
            x[place] = value
            residual = torch.randn(elems, generator=generator(place + 1))
            _check_overflow(codec, x, residual, f"{value} at {place} of {elems}")
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


def check_feedback(codec: Codec, x: torch.Tensor, residual: torch.Tensor, scale: float) -> None:
    """Check p = x + scale * residual = decoded + scale * residual afterwards, and encode agrees.

    Each of p, the error and the two products is rounded once or twice in float32.
    """
    name, elems = codec.name, x.numel()
    kept = Guarded(elems, torch.float32, 0)
    kept.tensor.copy_(residual)
    memory = Guarded(codec.wire_bytes(elems), torch.uint8, 0xFF)
    length = codec.encode_feedback(x, kept.tensor, memory.tensor, DRAW, scale)
    require(memory.intact and kept.intact, f"{name}: encode_feedback wrote outside its memory")
    corrected = torch.add(x, residual, alpha=scale)
    same = torch.equal(memory.tensor[:length], encoded(codec, corrected))
    require(same, f"{name}: encode_feedback and encode of the corrected gradient differ")
    out = decoded(codec, memory.tensor[:length], elems).double()
    if not out.isfinite().all():
        return  # too large for a cast; what becomes of it is checked as overflow
    after = out + scale * kept.tensor.double()
    before = x.double() + scale * residual.double()
    parts = x.abs().double() + scale * residual.abs().double() + out.abs()
    bound = 6 * _ROUNDING * parts + 4 * scale * _SMALLEST
    worst = float(((after - before).abs() - bound).max()) if elems else 0.0
    sentence = f"{name}: of {elems} elements, some lose {worst:.3g} between payload and residual"
    require(worst <= 0, sentence)


def check_decode_add(codec: Codec, x: torch.Tensor) -> None:
    """Check decode_add = out + weight * decode, to the rounding of one product and one sum."""
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
    right = bool(((out.tensor.double() - due).abs() <= bound).all())
    require(right, f"{codec.name}: decode_add is not out + weight * decode for {elems} elements")


def check_hostile(codec: Codec, x: torch.Tensor, mutations: int = 24) -> None:
    """Whatever arrives, decoding raises PayloadError or stays within `out`."""
    payload, random = encoded(codec, x), generator(x.numel())
    fixed = isinstance(codec.size, Fixed)
    for length in {0, 1, payload.numel() - 1, payload.numel() + 1, 2 * payload.numel() + 8}:
        wrong = torch.zeros(max(length, 0), dtype=torch.uint8)
        front = min(length, payload.numel())
        wrong[:front] = payload[:front]
        if wrong.numel() != payload.numel():
            refused = _survives(codec, wrong, x.numel())
            sentence = f"{codec.name}: {length} bytes were decoded, {payload.numel()} are due"
            require(refused or (not fixed and length < payload.numel()), sentence)
    for round_ in range(mutations):
        mutant = payload.clone()
        if round_ < 2:
            mutant.fill_(_FILLS[round_])
        else:
            places = torch.randint(payload.numel(), (1 + round_ % 4,), generator=random)
            values = torch.randint(256, places.shape, generator=random, dtype=torch.uint8)
            mutant[places] = values
        _survives(codec, mutant, x.numel())


def _survives(codec: Codec, payload: torch.Tensor, elems: int) -> bool:
    """Decode in guard bands; return whether the payload was refused, with `out` untouched."""
    refused = []
    for add in (False, True):
        out = Guarded(elems, torch.float32, 0x42)
        before = out.tensor.clone()
        try:
            if add:
                codec.decode_add(payload, out.tensor, 0.5, DRAW)
            else:
                codec.decode(payload, out.tensor, DRAW)
        except PayloadError:
            refused.append(True)
            untouched = same_bits(before, out.tensor)
            require(untouched, f"{codec.name}: a payload was refused after `out` was written")
        else:
            refused.append(False)
        require(out.intact, f"{codec.name}: a hostile payload made it write outside `out`")
    require(refused[0] == refused[1], f"{codec.name}: decode and decode_add disagree on a payload")
    return refused[0]
