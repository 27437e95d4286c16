"""What the conformance checks are run on: awkward vectors, and the gradients of a small model."""

from __future__ import annotations

import torch

from compressa.parameters import ParameterInfo

SIZES = (1, 2, 7, 97, 256, 1009)
"""One element, primes, a power of two: whole blocks, and last blocks of every kind."""

_SHAPES: dict[str, tuple[int, ...]] = {
    "weight": (24, 40),
    "conv": (16, 3, 3, 3),
    "bias": (7,),
    "gain": (1,),
    "v": (97,),
}

MODEL = tuple(ParameterInfo(i, name, shape) for i, (name, shape) in enumerate(_SHAPES.items()))
"""Parameters of every kind: a matrix, a convolution, vectors, a single element."""


def generator(seed: int) -> torch.Generator:
    """Return a private generator."""
    return torch.Generator().manual_seed(seed)


def vectors(elems: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return vectors of ordinary size, by name; the same for the same seed.

    Args:
        elems: How many elements each has; at least 1.
        seed: Of what is random in them.

    Returns:
        float32[elems] each, on the CPU, all finite.
    """
    random = generator(seed)
    gaussian = torch.randn(elems, generator=random)
    uniform = torch.rand(elems, generator=random).clamp(1e-6, 1 - 1e-6) - 0.5
    spiky = 1e-3 * torch.randn(elems, generator=random)
    spiky[:: max(elems // 3, 1)] = 100.0
    one_hot = torch.zeros(elems)
    one_hot[elems // 2] = -3.0
    return {
        "gaussian": gaussian,
        "laplace": -uniform.sign() * torch.log1p(-2 * uniform.abs()),
        "spiky": spiky,
        "constant": torch.full((elems,), -0.7),
        "one-hot": one_hot,
    }


def tiny_vectors(elems: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return vectors of zeros and of subnormal numbers, by name; the same for the same seed.

    Args:
        elems: How many elements each has.
        seed: Of what is random in them.

    Returns:
        float32[elems] each, on the CPU.
    """
    random = generator(seed)
    steps = torch.randint(-2, 3, (elems,), generator=random)
    return {
        "zero": torch.zeros(elems),
        "negative zero": torch.full((elems,), -0.0),
        "denormal": torch.randn(elems, generator=random) * 1e-41,
        "smallest denormals": (steps.double() * 2.0**-149).float(),
    }


def model_gradients(
    size: int, step: int, loss_scale: float = 1.0, *, seed: int = 0
) -> list[dict[str, torch.Tensor]]:
    """Return each rank's gradients of `MODEL`: a direction that all share, and noise.

    Args:
        size: Number of ranks.
        step: Other steps have other gradients.
        loss_scale: What they are multiplied by.
        seed: Other seeds have others.

    Returns:
        By rank and parameter name, float32 of the parameter's shape.
    """
    random = generator(1_000_003 * seed + step)
    result: list[dict[str, torch.Tensor]] = [{} for _ in range(size)]
    for parameter in MODEL:
        common = torch.randn(parameter.shape, generator=random)
        for own in result:
            noise = torch.randn(parameter.shape, generator=random)
            own[parameter.name] = (common + 0.5 * noise) * loss_scale
    return result
