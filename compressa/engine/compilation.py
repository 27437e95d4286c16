"""Compilation: the kernels that training will call, before anything waits for them.

Which these are, nobody lists: a few parameters that stand for the model's are trained for some
steps, among a few ranks that exist in this process only. That calls all that compresses, sums and
decodes, with the dtypes and in the forms that the configuration asks for, and compiles nothing
else. It takes milliseconds where the compiled code is on disk already.

On a GPU this loads the kernels, too, as long as nothing else runs there: to load one beside a
collective that waits for another rank may wait for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from compressa.aggregators.base import CPU
from compressa.codecs.none import NoCompression
from compressa.compressor import Compressor
from compressa.config import Config
from compressa.engine.device_stream import LACKS, resources_for
from compressa.engine.session import Session
from compressa.engine.units.lockstep import Lockstep
from compressa.engine.units.phase import breakpoints
from compressa.kernels import KernelUnavailable
from compressa.kernels.compiled import PATIENCE_S, compile_once
from compressa.parameters import ParameterInfo

_MOST_RANKS = 4  # how codecs are exchanged does not depend on how many more there are
_SIDE = 400
_ELEMS = _SIDE * _SIDE  # more than any kernel takes for few
_STEPS = 3
_compiled: set[str] = set()  # by this process


def compile_on_all_ranks(
    session: Session,
    parameters: Sequence[ParameterInfo],
    compressors: Mapping[str, Compressor],
    config: Config,
) -> None:
    """Compile what the compressors need, and wait for the other ranks to have done so. Collective.

    No deadline passes meanwhile, but a rank that is lost is noticed.

    Args:
        session: Over which the ranks wait.
        parameters: The model's.
        compressors: By parameter name.
        config: Says how payloads are exchanged, and how long a start may take.

    Raises:
        BackendUnavailable: A kernel can not be compiled; the message names the fix.
        TransportError: A rank is lost, or does not come so far within the time of a start.
    """
    device_stream = session.device_stream
    # Who hangs while it opens its transport, which not all transports notice, compiles nothing.
    session.all_gather(b"", "opened transport", config.exchange.start_wait_s)
    with device_stream.current(), resources_for("a trial of all kernels"):
        compile_kernels(parameters, compressors, config, session.size, device_stream.device)
    session.all_gather(b"", "compiled kernels", config.exchange.deadline_s + PATIENCE_S)


def compile_kernels(
    parameters: Sequence[ParameterInfo],
    compressors: Mapping[str, Compressor],
    config: Config,
    size: int,
    device: torch.device = CPU,
) -> None:
    """Compile what the compressors need on a device; one process of a host does it for all.

    Waits for another process that is at it. What can not be trained here fails in training, which
    says where.

    Args:
        parameters: The model's.
        compressors: By parameter name.
        config: Says how payloads are exchanged.
        size: Number of ranks.
        device: A CPU or the current GPU.

    Raises:
        KernelUnavailable: A kernel can not be compiled for the GPU.
        MemoryError: The trial has not enough of the host's; torch's own error for the GPU's.
    """
    ranks, exchange = min(size, _MOST_RANKS), config.exchange
    cases = sorted(_cases(parameters, compressors), key=repr)
    what = repr((device, ranks, exchange.kind, exchange.algorithm, cases))
    if not cases or what in _compiled:
        return

    def work() -> None:
        for compressor, dtype, shapes in cases:
            _train(compressor, dtype, shapes, ranks, config, device)

    if device.type == "cpu":
        compile_once(what, work)
    else:
        work()  # a source has a lock of its own
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
    compressor: Compressor,
    dtype: torch.dtype,
    shapes: Shapes,
    ranks: int,
    config: Config,
    device: torch.device,
) -> None:
    """Train some steps: of zeros, which look alike to selections, and of noise.

    On a GPU, where torch's kernels are loaded at their first use, too, the last one is skipped.
    """
    infos = [ParameterInfo(i, str(i), shape, dtype) for i, shape in enumerate(shapes)]
    generator = torch.Generator().manual_seed(0)
    exchange = config.exchange
    try:
        world = Lockstep(
            ranks,
            infos,
            compressor,
            exchange=exchange.kind,
            algorithm=exchange.algorithm,
            device=device,
        )
        for step in range(_STEPS):
            noise = [torch.randn(info.shape, generator=generator) * bool(step) for info in infos]
            own = {info.name: x.to(dtype) for info, x in zip(infos, noise, strict=True)}
            copies = [{n: _copy(x, device) for n, x in own.items()} for _ in range(ranks)]
            world.step(copies, check_finite=device.type == "cuda")
        if device.type == "cuda" and world.finite:
            world.rollback()
    except Exception as error:
        # What goes wrong here goes wrong in training, which tells where and on which ranks; but
        # kernels for want of memory would be loaded there, beside collectives.
        if isinstance(error, LACKS if device.type == "cuda" else KernelUnavailable):
            raise


def _copy(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=device).copy_(x)
