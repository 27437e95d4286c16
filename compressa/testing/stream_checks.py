"""Random bits: others for each rank, stage, step, parameter and element, or shared as declared.

If all ranks rounded with the same noise, their mean would be as noisy as one rank. So of n ranks
with private streams and one gradient, the mean has 1/n of one rank's variance; and draws that
differ in one field of their counter are not correlated. Each comparison allows for six standard
errors over 64 pairs of draws.
"""

from __future__ import annotations

import dataclasses

import torch

from compressa.codecs.base import Codec, Draw
from compressa.compressor import Compressor, Granularity
from compressa.engine.units.lockstep import Lockstep
from compressa.parameters import ParameterInfo
from compressa.testing.bias_checks import SIGMAS, is_random
from compressa.testing.inputs import vectors
from compressa.testing.memory import require, same_bits

_ELEMS = 512
_PAIRS = 64
_RANKS = 4
_BASE = Draw(seed=11, step=0, parameter=1, start=0, rank=0)
_ROUNDING = 2.0**-22  # of a mean of four in float32
_FAR = (1 << 32, 1 << 34)  # where an element's number, and its block's, leave 32 bits


def check_streams(codec: Codec) -> None:
    """Random bits depend on all that they should depend on, and on nothing else.

    Raises:
        AssertionError: They do not, with a probability of error of some 2e-9 for each comparison.
    """
    if not is_random(codec):
        return
    x = vectors(_ELEMS)["gaussian"]
    if codec.shared_stream:
        _check_shared(codec, x)
    else:
        _check_mean_over_ranks(codec, x)
    base = _differences(codec, x, _BASE)
    for what, draw in _others(codec).items():
        _check_apart(codec, what, base, _differences(codec, x, draw))


def check_mean_of_ranks(compressor: Compressor) -> None:
    """The mean that four ranks arrive at has a fourth of the variance that one rank has alone.

    Args:
        compressor: A codec that draws private random bits.

    Raises:
        AssertionError: It has another.
    """
    alone, together = (_squares(compressor, [1] * ranks) for ranks in (1, _RANKS))
    spread = (alone.var() + (_RANKS * together).var()).sqrt() / len(alone) ** 0.5
    found, due = float(together.mean()), float(alone.mean()) / _RANKS
    sentence = (
        f"{compressor.name}: the mean of {_RANKS} ranks with one gradient has a variance of "
        f"{found:.3g}, and not {due:.3g}: each rank must draw as itself"
    )
    require(_RANKS * abs(found - due) <= SIGMAS * float(spread), sentence)


def check_ranks_apart(compressor: Compressor) -> None:
    """The mean over four ranks varies as much if two of them have the opposite of one gradient.

    If ranks drew alike, errors of x would add up, and errors of x and -x would not, or less. This
    compares worlds of one size, and so holds where rounding depends on the number of ranks. It is
    for unbiased compressors: errors that do not average out differ for x and -x.

    Raises:
        AssertionError: It varies otherwise.
    """
    alike, opposite = (
        _squares(compressor, signs) for signs in ([1] * _RANKS, [1, -1] * (_RANKS // 2))
    )
    spread = (alike.var() + opposite.var()).sqrt() / len(alike) ** 0.5
    found, due = float(alike.mean()), float(opposite.mean())
    rounding = _ROUNDING**2 * float(vectors(_ELEMS)["gaussian"].double().square().sum())
    sentence = (
        f"{compressor.name}: the mean of {_RANKS} ranks with one gradient has a variance of "
        f"{found:.3g}, and not {due:.3g}: each rank must draw as itself"
    )
    require(abs(found - due) <= SIGMAS * float(spread) + rounding, sentence)


def _squares(compressor: Compressor, signs: list[int]) -> torch.Tensor:
    """Return float64[pairs]: how far apart the means of two steps are.

    Args:
        compressor: What is looked at.
        signs: By rank, what the gradient is multiplied by.
    """
    x, size = vectors(_ELEMS)["gaussian"], len(signs)
    ranks = Lockstep(size, [ParameterInfo(0, "w", (_ELEMS,))], compressor, exchange="all_gather")
    given = ([{"w": x * sign} for sign in signs] for _ in range(2 * _PAIRS))
    means = torch.stack([ranks.step(step)[0]["w"] for step in given]).double()
    return (means[::2] - means[1::2]).square().sum(dim=1)


def _others(codec: Codec) -> dict[str, Draw]:
    """Return counters that differ from the base in one field."""
    fields: dict[str, dict[str, int | bool]] = {
        "seed": {"seed": 12},
        "parameter": {"parameter": 2},
        "step after 2^20": {"step": 1 << 20},
    }
    if not codec.shared_stream:
        fields |= {"rank": {"rank": 1}, "stage of the owner": {"owner": True}}
    if codec.granularity in (Granularity.ELEMENT, Granularity.BLOCK):
        block = codec.block_elems
        fields |= {f"start at {s * block}": {"start": s * block} for s in (64, *_FAR)}
    return {what: dataclasses.replace(_BASE, **change) for what, change in fields.items()}  # type: ignore[arg-type]


def _check_mean_over_ranks(codec: Codec, x: torch.Tensor) -> None:
    drawn = [_differences(codec, x, dataclasses.replace(_BASE, rank=r)) for r in range(_RANKS)]
    one = torch.stack([part.square().sum(dim=1) for part in drawn]).mean(dim=0)
    mean = torch.stack(drawn).mean(dim=0).square().sum(dim=1)
    excess = _RANKS * mean - one  # of expectation zero: cross terms of independent draws
    spread = SIGMAS * float(excess.std()) / len(excess) ** 0.5
    found, due = float(mean.mean() / one.mean()), 1 / _RANKS
    sentence = (
        f"{codec.name}: over {_RANKS} ranks, the mean of one gradient has {found:.3g} of one "
        f"rank's variance instead of {due:.3g}: ranks must draw different bits, or declare a "
        "shared stream"
    )
    require(abs(float(excess.mean())) <= spread, sentence)


def _check_shared(codec: Codec, x: torch.Tensor) -> None:
    outs = []
    for sender, reader in ((0, 0), (0, 1), (1, 1)):
        payload = torch.empty(codec.wire_bytes(x.numel()), dtype=torch.uint8)
        length = codec.encode(x, payload, dataclasses.replace(_BASE, rank=sender))
        outs.append(torch.empty_like(x))
        codec.decode(payload[:length], outs[-1], dataclasses.replace(_BASE, rank=reader))
    same = all(same_bits(outs[0], out) for out in outs)
    require(same, f"{codec.name}: declares a shared stream, but its bits depend on the rank")


def _check_apart(codec: Codec, what: str, a: torch.Tensor, b: torch.Tensor) -> None:
    together = (a * b).sum(dim=1)
    size = float((a.square().sum() * b.square().sum()).sqrt()) / len(a)
    found, spread = float(together.mean()) / size, float(together.std()) / size / len(a) ** 0.5
    sentence = f"{codec.name}: draws for another {what} correlate by {found:.3g} with the first"
    require(abs(found) <= SIGMAS * spread, sentence)


def _differences(codec: Codec, x: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Return float64[pairs, n]: what two steps decode to, subtracted, so that a bias drops out."""
    payload = torch.empty(codec.wire_bytes(x.numel()), dtype=torch.uint8)
    outs = torch.empty(2 * _PAIRS, x.numel())
    for step, out in enumerate(outs):
        now = dataclasses.replace(draw, step=draw.step + step)
        codec.decode(payload[: codec.encode(x, payload, now)], out, now)
    return (outs[::2] - outs[1::2]).double()
