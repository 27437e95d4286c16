"""Compilation: the kernels that training will call, before anything waits for them.

Which these are, nobody lists: a few parameters that stand for the model's are trained for some
steps, among a few ranks that exist in this process only. That calls all that compresses, sums and
decodes, with the dtypes and in the forms that the configuration asks for, and compiles nothing
else. It takes milliseconds where the compiled code is on disk already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch

from compressa.codecs.none import NoCompression
from compressa.compressor import Compressor
from compressa.config import Config
from compressa.engine.session import Session
from compressa.engine.units.lockstep import Lockstep
from compressa.engine.units.phase import breakpoints
from compressa.kernels.compiled import PATIENCE_S, compile_once
from compressa.parameters import ParameterInfo

_MOST_RANKS = 4  # how codecs are exchanged does not depend on how many more there are
_SIDE = 400
_ELEMS = _SIDE * _SIDE  # more than any kernel takes for few
_STEPS = 3
_compiled: set[str] = set()  # by this process


def compile_together(
    session: Session,
    parameters: Sequence[ParameterInfo],
    compressors: Mapping[str, Compressor],
    config: Config,
) -> None:
    """Compile what the compressors need, and wait for the other ranks to have done so. Collective.

    No deadline passes meanwhile, but a rank that is lost is noticed.

    Args:
        session: Over which the ranks wait; where it works on a GPU, nothing is compiled.
        parameters: The model's.
        compressors: By parameter name.
        config: Says how payloads are exchanged, and how long a start may take.

    Raises:
        TransportError: A rank is lost, or does not come so far within the time of a start.
    """
    # Who hangs while it opens its transport, which not all transports notice, compiles nothing.
    session.all_gather(b"", "opened transport", config.exchange.start_wait_s)
    if session.device_stream.device.type == "cpu":
        compile_kernels(parameters, compressors, config, session.size)
    session.all_gather(b"", "compiled kernels", config.exchange.deadline_s + PATIENCE_S)


def compile_kernels(
    parameters: Sequence[ParameterInfo],
    compressors: Mapping[str, Compressor],
    config: Config,
    size: int,
) -> None:
    """Compile what the compressors need on a CPU; one process of a host does it for all.

    Waits for another process that is at it. What can not be trained here fails in training, which
    says where.

    Args:
        parameters: The model's.
        compressors: By parameter name.
        config: Says how payloads are exchanged.
        size: Number of ranks.
    """
    ranks, exchange = min(size, _MOST_RANKS), config.exchange
    cases = sorted(_cases(parameters, compressors), key=repr)
    what = repr((ranks, exchange.kind, exchange.algorithm, cases))
    if not cases or what in _compiled:
        return

    def work() -> None:
        for compressor, dtype, shapes in cases:
            _train(compressor, dtype, shapes, ranks, config)

    compile_once(what, work)
    _compiled.add(what)


Shapes = tuple[tuple[int, ...], ...]
Case = tuple[Compressor, torch.dtype, Shapes]


def _cases(
    parameters: Sequence[ParameterInfo], compressors: Mapping[str, Compressor]
) -> Iterator[Case]:
    """Yield what is compressed in ways of its own, with the shapes of parameters for each."""
    shapes: dict[tuple[Compressor, torch.dtype], dict[object, tuple[int, ...]]] = {}
    for step in {0, *breakpoints(compressors)}:
        for parameter in parameters:
            now = compressors[parameter.name].at(step).for_parameter(parameter)
            if not isinstance(now, NoCompression) and parameter.elems:
                small = _smaller(parameter.shape)
                alike = len(small) > 1, torch.Size(small).numel().bit_length()
                shapes.setdefault((now, parameter.dtype), {}).setdefault(alike, small)
    for (compressor, dtype), found in shapes.items():
        yield compressor, dtype, tuple(sorted(found.values()))


def _smaller(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that kernels treat as they do this one, of no more than `_ELEMS` elements."""
    if len(shape) < 2:
        return tuple(min(elems, _ELEMS) for elems in shape)
    columns = torch.Size(shape[1:]).numel()
    rows = min(shape[0], max(_SIDE, _ELEMS // columns))
    return rows, min(columns, _ELEMS // rows)


def _train(
    compressor: Compressor, dtype: torch.dtype, shapes: Shapes, ranks: int, config: Config
) -> None:
    """Train some steps: of zeros, which look alike to selections, and of noise."""
    infos = [ParameterInfo(i, str(i), shape, dtype) for i, shape in enumerate(shapes)]
    generator = torch.Generator().manual_seed(0)
    exchange = config.exchange
    # What goes wrong here goes wrong in training, which tells where and on which ranks.
    with contextlib.suppress(Exception):
        world = Lockstep(
            ranks, infos, compressor, exchange=exchange.kind, algorithm=exchange.algorithm
        )
        for step in range(_STEPS):
            noise = [torch.randn(info.shape, generator=generator) * bool(step) for info in infos]
            own = {info.name: x.to(dtype) for info, x in zip(infos, noise, strict=True)}
            world.step([{name: x.clone() for name, x in own.items()} for _ in range(ranks)])
