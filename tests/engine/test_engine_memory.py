"""The engine lets go of gradients when a step is done: their memory is DDP's, who may free it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from _until import until
from compressor_cases import ALL, with_feedback
from engines import engine_over
from torch.multiprocessing.reductions import StorageWeakRef

from compressa.codecs import Codec, Int8, NoCompression
from compressa.compressor import Compressor, Granularity
from compressa.config import load_config
from compressa.engine.engine import Engine
from compressa.errors import StateError
from compressa.parameters import ParameterInfo
from compressa.testing.inputs import generator

SHAPES = {"w": (40, 30), "b": (40,), "v": (64, 50)}
INFOS = [ParameterInfo(i, name, shape) for i, (name, shape) in enumerate(SHAPES.items())]
CUT = {"unit_bytes": 512, "unit_dense_bytes": 512, "unit_payload_bytes": 1}


@contextmanager
def engine_of(compressor: Compressor, **exchange: object) -> Iterator[Engine]:
    config = load_config({"compressor": "none", "exchange": {**CUT, **exchange}})
    engine = engine_over(INFOS, dict.fromkeys(SHAPES, compressor), config=config)
    yield engine
    engine.close()


def bucket(names: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    return {n: torch.randn(shape, generator=generator(seed)) for n, shape in names.items()}


def storages(gradients: Mapping[str, torch.Tensor]) -> list[StorageWeakRef]:
    return [StorageWeakRef(x.untyped_storage()) for x in gradients.values()]


def all_are_freed(storages: list[StorageWeakRef]) -> bool:
    """The thread that ended the step may hold them for a moment."""
    return until(lambda: all(x.expired() for x in storages))


def cases() -> list[object]:
    found = []
    for name, compressor in ALL.items():
        found.append(pytest.param(compressor, "auto", id=name))
        if isinstance(compressor, Codec) and not isinstance(compressor, NoCompression):
            found.append(pytest.param(with_feedback(compressor), "auto", id=f"{name}-feedback"))
            if compressor.granularity in (Granularity.ELEMENT, Granularity.BLOCK):
                found.append(pytest.param(compressor, "scatter_reduce", id=f"{name}-scattered"))
    found.append(pytest.param(with_feedback(Int8()), "per_hop", id="int8-per-hop"))
    return found


@pytest.mark.parametrize(("compressor", "kind"), cases())
def test_a_step_that_is_done_keeps_no_gradient(compressor: Compressor, kind: str) -> None:
    with engine_of(compressor, kind=kind) as engine:
        for step, loss_scale in enumerate((None, 8.0)):
            gradients = bucket(SHAPES, step)
            gone = storages(gradients)
            engine.wait([engine.submit(gradients, step=step, loss_scale=loss_scale)])
            del gradients
            assert all_are_freed(gone)
        engine.settle()


def test_a_unit_that_is_done_keeps_no_gradient_while_others_wait() -> None:
    with engine_of(Int8()) as engine:
        gradients = bucket({"v": SHAPES["v"]}, 0)
        gone = storages(gradients)
        engine.wait([engine.submit(gradients, step=0)])
        del gradients
        assert all_are_freed(gone)
        engine.wait([engine.submit(bucket({"w": (40, 30), "b": (40,)}, 0), step=0)])


def test_a_gradient_of_another_shape_is_refused() -> None:
    with engine_of(Int8()) as engine:
        longer = {"b": torch.ones(41)}  # as a vector it begins with what is due
        with pytest.raises(StateError, match=r"'b' has the shape \(41,\), where \(40,\) is due"):
            engine.submit(longer, step=0)


def test_a_gradient_that_comes_twice_is_refused_whether_its_unit_is_done_or_not() -> None:
    with engine_of(Int8(), unit_payload_bytes=1 << 20, unit_bytes=1 << 20) as engine:
        engine.submit(bucket({"b": (40,)}, 0), step=0)
        with pytest.raises(StateError, match="'b' is unknown, or was submitted twice"):
            engine.submit(bucket({"b": (40,)}, 0), step=0)
    with engine_of(Int8()) as engine:
        engine.wait([engine.submit(bucket({"v": SHAPES["v"]}, 0), step=0)])
        for name in ("v", "unknown"):
            with pytest.raises(StateError, match=f"'{name}' is unknown, or was submitted twice"):
                engine.submit(bucket({name: SHAPES["v"]}, 0), step=0)
