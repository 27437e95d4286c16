"""Whether a declared error bound is true: exactly, or with a stated confidence.

A codec that draws no random bits keeps its bound on every vector, to the rounding of float32.
Of one that does, means over draws are compared with what is declared, and may be off by six
standard errors: a true bound is refused with a probability of 2e-9 for each comparison, if sums
over many draws and elements are taken for normal. The draws are fixed by their counter, so that
a verdict is the same on every run.

The same goes for what an aggregator declares of the mean over ranks; all steps of one world have
the same gradients then.

What is found: in a vector of 1,009 elements, a gain that is off by 6 sqrt(omega / 400 / 1009), so
1 % for omega = 1; and an error that is systematic in small elements, in signs, or everywhere.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from compressa.codecs.base import Bias, Biased, Codec, Contraction, Range, Unbiased
from compressa.compressor import Compressor
from compressa.engine.units.lockstep import Lockstep
from compressa.parameters import ParameterInfo
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import vectors
from compressa.testing.memory import require, same_bits

SIGMAS = 6.0
_DRAWS = 400
_FEW_DRAWS = 50  # of a short vector, whose mean is not looked at
_MANY_ELEMS = 64
_RANDOM_ELEMS = 257  # so many that some are rounded in another way each time
_DENSE = ("gaussian", "laplace", "constant")  # no few elements hold most of the square
_SMALLEST_STEP = 2.0**-25  # half the smallest number of float16, the narrowest cast
_ROUNDING = 1e-6
_UNEVEN = 0.1  # how much shorter each rank's gradient is than the one before, in one case
_FLOAT = 4 * 2.0**-24  # of a value that passes a product and a quotient


def check_bias(codec: Codec, elems: int) -> None:
    """The error is as small as declared, on vectors of every shape, and unbiased if declared.

    Args:
        codec: What is checked.
        elems: Length n of the float32 vectors; fewer than 64 are not judged for bias.

    Raises:
        AssertionError: It is not; the message has what was found and what is declared.
    """
    samples = vectors(elems)
    random = is_random(codec)
    for what, x in samples.items():
        if not random:
            error = errors(codec, x, 1)
            check_error(codec, x, what, error)
            off = bool(error.square().sum() > _ROUNDING**2 * x.double().square().sum())
            honest = not (isinstance(codec.bias(elems), Unbiased) and off)
            require(honest, f"{codec.name}: says that it is unbiased, but errs in the same way")
            continue
        drawn = errors(codec, x, _DRAWS if elems >= _MANY_ELEMS else _FEW_DRAWS)
        trial = _codec_trial(codec, x, what, drawn)
        trial.check_error()
        if elems >= _MANY_ELEMS and what in _DENSE and isinstance(codec.bias(elems), Unbiased):
            trial.check_unbiased()


def is_random(codec: Codec) -> bool:
    """Whether a decoded vector depends on the counter of the random bits."""
    x = vectors(_RANDOM_ELEMS)["gaussian"]
    first = _round_trip(codec, x, 0)
    return not all(same_bits(first, _round_trip(codec, x, step)) for step in range(1, 5))


def errors(codec: Codec, x: torch.Tensor, draws: int) -> torch.Tensor:
    """Return float64[draws, n]: decode(encode(x)) - x for as many counters.

    Args:
        codec: What is looked at.
        x: float32[n], contiguous.
        draws: How many steps, from 0 on.
    """
    trips = torch.stack([_round_trip(codec, x, step) for step in range(draws)])
    return trips.double() - x.double()


def share(bound: Bias) -> float:
    """Return the declared bound of E||C(x) - x||^2 / ||x||^2."""
    if isinstance(bound, Contraction):
        return 1.0 - bound.delta
    return bound.noise if isinstance(bound, Biased) else bound.omega


def holds_for(bound: Bias, x: torch.Tensor) -> bool:
    """Whether all elements that are not 0 are within the bound's range.

    Args:
        bound: As declared.
        x: Of any shape, floating point.
    """
    sizes = x[x != 0].double().abs()
    return bool(((sizes >= bound.range.smallest) & (sizes <= bound.range.largest)).all())


def check_range(codec: Codec, elems: int) -> None:
    """The bound holds where the smallest element, or the largest, is just within its range.

    Args:
        codec: What is checked.
        elems: Length of the float32 vectors.

    Raises:
        AssertionError: It does not.
    """
    draws = _DRAWS if is_random(codec) else 1
    declared = codec.bias(elems)
    for what, x in vectors(elems).items():
        for edge, scaled in _at_edges(x, declared.range).items():
            if holds_for(declared, scaled):
                check_error(codec, scaled, f"{what} ({edge})", errors(codec, scaled, draws))


def _at_edges(x: torch.Tensor, held: Range) -> dict[str, torch.Tensor]:
    """Return the vector with its smallest or its largest magnitude at the edge of a range."""
    sizes, signs = x.double().abs(), x.sign()
    low = (sizes * (held.smallest / float(sizes[sizes > 0].min()))).float()
    low = signs * low.clamp(min=held.smallest)  # which rounding may have passed
    high = signs * (sizes * (held.largest / float(sizes.max()))).float().clamp(max=held.largest)
    return {"smallest": low, "largest": high}


@dataclass(frozen=True)
class _Trial:
    """What is due, and how far from it draws were.

    Attributes:
        name: Of what is judged.
        what: Kind of vector.
        exact: float64[n].
        errors: float64[draws, n].
        declared: What is declared for it.
        square: What the declared bound is multiplied by.
        beyond: Whether some elements are out of the bound's range, as too small for a cast.
    """

    name: str
    what: str
    exact: torch.Tensor
    errors: torch.Tensor
    declared: float
    square: float
    beyond: bool

    def check_error(self) -> None:
        squares, elems = self.errors.square().sum(dim=1), self.exact.numel()
        mean = float(squares.mean())
        spread = float(squares.std()) / len(squares) ** 0.5 if len(squares) > 1 else 0.0
        largest = max(self.square, float(self.exact.square().sum()))
        rounding = self.declared * _ROUNDING * self.square + _FLOAT**2 * largest
        rounding += elems * _SMALLEST_STEP**2 if self.beyond else 0.0
        sentence = (
            f"{self.name}: the squared error of a {self.what} vector of {elems} elements is "
            f"{mean / self.square:.4g} of its square over {len(squares)} draws, declared are "
            f"{self.declared:.4g}"
        )
        require(mean <= self.declared * self.square + SIGMAS * spread + rounding, sentence)

    def check_unbiased(self) -> None:
        """Look at the mean error along some directions and over all.

        Over all: the mean of R unbiased draws has an expected square of at most omega ||x||^2 / R,
        and where 64 elements or more contribute alike, three times that is beyond six sigma.
        """
        for along, direction in _directions(self.exact).items():
            parts = self.errors @ (direction / direction.square().sum())
            mean, spread = float(parts.mean()), float(parts.std()) / len(parts) ** 0.5
            rounding = _ROUNDING * float(self.exact.norm() / direction.norm())
            sentence = (
                f"{self.name}: the mean of {len(parts)} draws of a {self.what} vector is off by "
                f"{mean:.3g} along {along}, where chance explains {SIGMAS * spread:.3g}"
            )
            require(abs(mean) <= SIGMAS * spread + rounding, sentence)
        off = float(self.errors.mean(dim=0).square().sum()) / self.square
        allowed = 3 * self.declared / len(self.errors) + _ROUNDING**2
        sentence = (
            f"{self.name}: the mean of {len(self.errors)} draws of a {self.what} vector is off by "
            f"{off:.3g} of its square, where chance explains {allowed:.3g}"
        )
        require(off <= allowed, sentence)


def check_error(codec: Codec, x: torch.Tensor, what: str, drawn: torch.Tensor) -> None:
    """The mean square of the drawn errors is within the declared bound.

    Args:
        codec: Declares it.
        x: float32[n].
        what: Kind of vector, for the message.
        drawn: float64[draws, n], from `errors`.

    Raises:
        AssertionError: It exceeds the bound by more than chance and rounding explain.
    """
    _codec_trial(codec, x, what, drawn).check_error()


def check_bias_of_mean(compressor: Compressor, elems: int, size: int) -> None:
    """The mean over ranks errs as declared, whether their gradients are alike or not.

    Args:
        compressor: What is checked, if it declares a bound of the mean.
        elems: Length of each rank's float32 gradient.
        size: Number of ranks.

    Raises:
        AssertionError: It errs more, or is biased where it says that it is not.
    """
    declared = compressor.bias_of_mean(elems, size)
    if declared is None:
        return
    for what, gradients in _gradients(elems, size).items():
        exact = gradients.double().mean(dim=0)
        drawn = _means(compressor, gradients).double() - exact
        square = float(gradients.double().square().sum()) / size**2
        name = f"{compressor.name} on {size} ranks"
        beyond = not holds_for(declared, gradients)
        trial = _Trial(name, what, exact, drawn, share(declared), square, beyond)
        trial.check_error()
        if isinstance(declared, Unbiased) and what in (*_DENSE, "uneven"):
            trial.check_unbiased()


def _codec_trial(codec: Codec, x: torch.Tensor, what: str, drawn: torch.Tensor) -> _Trial:
    exact = x.double()
    declared, square = codec.bias(x.numel()), float(exact.square().sum())
    beyond = not holds_for(declared, x)
    return _Trial(codec.name, what, exact, drawn, share(declared), square, beyond)


def _directions(exact: torch.Tensor) -> dict[str, torch.Tensor]:
    small = torch.where(exact.abs() <= exact.abs().median(), exact, 0.0)
    return {
        "the vector itself": exact,
        "its small elements": small,
        "its signs": exact.sign(),
        "all ones": torch.ones_like(exact),
    }


def _gradients(elems: int, size: int) -> dict[str, torch.Tensor]:
    """Return float32[size, elems] by name: each rank its own, each a tenth, only one not zero."""
    by_rank = [vectors(elems, seed=rank) for rank in range(size)]
    own = {what: torch.stack([vectors_[what] for vectors_ in by_rank]) for what in by_rank[0]}
    lengths = torch.tensor([_UNEVEN**rank for rank in range(size)])[:, None]
    first = (torch.arange(size) == 0)[:, None]
    alone = {"lonely": own["gaussian"] * first, "uneven": own["gaussian"] * lengths}
    return {**own, **alone}


def _means(compressor: Compressor, gradients: torch.Tensor) -> torch.Tensor:
    """Return float32[draws, n]: what arrives on the first rank in as many steps."""
    size, elems = gradients.shape
    ranks = Lockstep(size, [ParameterInfo(0, "w", (elems,))], compressor)
    steps = ([{"w": own.clone()} for own in gradients] for _ in range(_DRAWS))
    return torch.stack([ranks.step(given)[0]["w"] for given in steps])


def _round_trip(codec: Codec, x: torch.Tensor, step: int) -> torch.Tensor:
    draw = dataclasses.replace(DRAW, step=step)
    if step < 5:
        return decoded(codec, encoded(codec, x, draw), x.numel(), draw)
    payload, out = torch.empty(codec.wire_bytes(x.numel()), dtype=torch.uint8), torch.empty_like(x)
    codec.decode(payload[: codec.encode(x, payload, draw)], out, draw)
    return out
