"""Whether a codec's declared error bound is true: exactly, or with six standard deviations."""

from __future__ import annotations

import dataclasses

import torch

from compressa.codecs.base import Codec, Contraction, Unbiased
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import vectors
from compressa.testing.memory import require, same_bits

_DRAWS = 256
_SIGMAS = 6.0  # a true bound fails with a probability below 1e-8, and then on every run alike
_SMALLEST_STEP = 2.0**-25  # half the smallest number of float16, the narrowest cast
_DENSE = ("gaussian", "laplace", "constant")


def check_bias(codec: Codec, elems: int) -> None:
    """Check the declared bound on vectors of every shape.

    A codec that draws no random numbers must keep its bound on each vector. For one that does,
    the mean over draws is compared, on vectors whose squares do not sit in a few elements.
    """
    samples = vectors(elems)
    random = is_random(codec, samples["gaussian"])
    for what, x in samples.items():
        if not random:
            errors = _squared_errors(codec, x, 1)
            _check_error(codec, x, what, errors)
            honest = isinstance(codec.bias(elems), Contraction) or not errors.any()
            require(honest, f"{codec.name}: says that it is unbiased, but errs in the same way")
        elif what in _DENSE and elems >= 64:
            _check_error(codec, x, what, _squared_errors(codec, x, _DRAWS))
    if random and elems >= 64 and isinstance(codec.bias(elems), Unbiased):
        check_unbiased(codec, samples["gaussian"])


def is_random(codec: Codec, x: torch.Tensor) -> bool:
    """Whether the decoded vector depends on the counter of the random bits."""
    first = _round_trip(codec, x, 0)
    return not all(same_bits(first, _round_trip(codec, x, step)) for step in range(1, 5))


def check_unbiased(codec: Codec, x: torch.Tensor, most_draws: int = 3000) -> None:
    """The mean of R decodes is off by at most the norm that chance allows.

    E||mean - x||^2 <= omega ||x||^2 / R for an unbiased codec, and with hundreds of elements
    that nearly are independent the square stays below twice its expectation; a bias of more
    than about 1/10 of ||x|| fails.
    """
    bound = codec.bias(x.numel())
    assert isinstance(bound, Unbiased)
    draws = int(min(most_draws, max(200, 200 * bound.omega)))
    total = torch.zeros(x.numel(), dtype=torch.float64)
    for step in range(draws):
        total += _round_trip(codec, x, step).double()
    off = float((total / draws - x.double()).square().sum() / x.double().square().sum())
    allowed = 2 * bound.omega / draws + 1e-12
    sentence = f"{codec.name}: the mean of {draws} draws is off by {off:.3g}, not {allowed:.3g}"
    require(off <= allowed, sentence)


def _check_error(codec: Codec, x: torch.Tensor, what: str, errors: torch.Tensor) -> None:
    bound, length = codec.bias(x.numel()), float(x.double().square().sum())
    share = bound.omega if isinstance(bound, Unbiased) else 1.0 - bound.delta
    spread = float(errors.std()) / len(errors) ** 0.5 if len(errors) > 1 else 0.0
    allowed = share * length * (1 + 1e-6) + _SIGMAS * spread + x.numel() * _SMALLEST_STEP**2
    mean = float(errors.mean())
    sentence = (
        f"{codec.name}: the squared error of a {what} vector of {x.numel()} elements is "
        f"{mean / length:.4g} of its square, declared are {share:.4g}"
    )
    require(mean <= allowed, sentence)


def _squared_errors(codec: Codec, x: torch.Tensor, draws: int) -> torch.Tensor:
    exact = x.double()
    trips = (_round_trip(codec, x, step).double() for step in range(draws))
    return torch.stack([(trip - exact).square().sum() for trip in trips])


def _round_trip(codec: Codec, x: torch.Tensor, step: int) -> torch.Tensor:
    draw = dataclasses.replace(DRAW, step=step)
    if step < 5:
        return decoded(codec, encoded(codec, x, draw), x.numel(), draw)
    payload, out = torch.empty(codec.wire_bytes(x.numel()), dtype=torch.uint8), torch.empty_like(x)
    codec.decode(payload[: codec.encode(x, payload, draw)], out, draw)
    return out
