from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import compressa.kernels
import numpy as np
import pytest
from _trees import uncompiled_tree
from compressa.kernels import (
    Form,
    KernelUnavailable,
    _backends,
    device_of,
    quantize_blockwise,
    random_words,
    scatter_add,
)
from compressa.kernels.cuda._device import HOME

FORM = Form(bits=8, block=8)


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def module(*path: str) -> ModuleType:
    return importlib.import_module(".".join(("compressa.kernels", *path)))


def test_import_loads_no_numba() -> None:
    assert python("import sys, compressa.kernels; print('numba' in sys.modules)") == "False"


def test_bare_name_is_refused() -> None:
    folder = Path(compressa.kernels.__file__).resolve().parent
    code = f"import sys; sys.path.insert(0, {str(folder.parent)!r}); import {folder.name}"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        python(code)
    assert "import that, not 'kernels'" in caught.value.stderr


def test_second_process_compiles_nothing(tmp_path: Path) -> None:
    cold = {
        "PYTHONPATH": str(uncompiled_tree(tmp_path)),
        "PYTHONSAFEPATH": "1",  # or the folder that it is started in comes first
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    code = """
import numpy as np
from compressa.kernels.cuda._device import HOME
from compressa.kernels import stratified_indices
stratified_indices(np.empty(4, np.int64), 9, np.zeros(4, np.uint32))
from compressa.kernels.cpu import strata
stats = strata._stratified.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""
    assert python(code, **cold) == "0 1"
    assert python(code, **cold) == "1 0"


def functions(where: ModuleType) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in vars(where).items()
        if inspect.isfunction(value) and value.__module__ == where.__name__ and name[0] != "_"
    }


HERE = Path(compressa.kernels.__file__).parent
CPU = sorted(path.stem for path in (HERE / "cpu").glob("[!_]*.py"))


@pytest.mark.parametrize("algorithm", CPU)
def test_cpu_has_the_functions_that_are_specified(algorithm: str) -> None:
    specified, own = functions(module(algorithm)), functions(module("cpu", algorithm))
    assert own
    for name, signature in own.items():
        due, found = dict(specified[name].parameters), dict(signature.parameters)
        if "check" not in found:
            due.pop("check", None)  # whether the public function looks at indices before
        assert found == due, name


def test_reference_needs_no_backend() -> None:
    code = """
import sys, numpy as np
from compressa.kernels import random_words, reference
out = np.zeros(4, np.uint32)
with reference():
    random_words(out, seed=1, stream=2, step=3, parameter=4)
print(out.any(), "numba" in sys.modules)
"""
    assert python(code) == "True False"


CUDA = sorted(path.stem for path in HOME.glob("[!_]*.py"))


@pytest.mark.parametrize("algorithm", CUDA)
def test_cuda_has_the_same_functions(algorithm: str) -> None:
    assert functions(module("cuda", algorithm)) == functions(module("cpu", algorithm))


def test_doctests() -> None:
    attempted = 0
    for info in pkgutil.iter_modules(compressa.kernels.__path__):
        result = doctest.testmod(module(info.name))
        assert result.failed == 0, info.name
        attempted += result.attempted
    assert attempted > 10


class OnCuda:
    """As much of a CUDA array as the dispatch looks at."""

    __cuda_array_interface__: dict[str, object] = {}  # noqa: RUF012
    dtype, ndim, size, shape = np.dtype(np.uint32), 1, 4, (4,)
    flags = np.empty(4, np.uint32).flags


def test_device_without_backend_raises_and_names_the_extra() -> None:
    assert device_of(OnCuda()) == "cuda"
    with pytest.raises(KernelUnavailable, match=r"device 'cuda'.*pip install compressa\[cuda12\]"):
        random_words(OnCuda(), seed=0, stream=0, step=0, parameter=0)  # type: ignore[arg-type]


def test_missing_numba_raises_and_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("compressa.kernels.cpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    _backends._load.cache_clear()
    try:
        with pytest.raises(KernelUnavailable, match="install numba"):
            random_words(np.empty(4, np.uint32), seed=0, stream=0, step=0, parameter=0)
    finally:
        _backends._load.cache_clear()


def test_arrays_on_different_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="one device"):
        _backends.backend("topk", np.empty(1), OnCuda())


def test_other_containers_are_refused() -> None:
    with pytest.raises(TypeError, match="NumPy or CuPy array, got list"):
        device_of([1.0])


def unaligned() -> np.ndarray:
    return np.zeros(33, np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.zeros(8), TypeError, "x must be float32, .* not float64"),
        (np.zeros((2, 4), np.float32), ValueError, "x must have one dimension"),
        (np.zeros(16, np.float32)[::2], ValueError, "x must be C-contiguous"),
        (unaligned(), ValueError, "x must be aligned"),
    ],
)
def test_unfit_inputs_are_refused(x: np.ndarray, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        quantize_blockwise(x, np.empty(8, np.uint8), np.empty(1, np.float32), form=FORM)


def test_unfit_outputs_and_residuals_are_refused() -> None:
    x, codes, scales = np.zeros(8, np.float32), np.empty(8, np.uint8), np.empty(1, np.float32)
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"codes must have shape \(8,\)"):
        quantize_blockwise(x, codes[:7], scales, form=FORM)
    with pytest.raises(ValueError, match="residual must have shape"):
        quantize_blockwise(x, codes, scales, form=FORM, residual=x[:7])
    with pytest.raises(ValueError, match="residual is written to"):
        quantize_blockwise(x, codes, scales, form=FORM, residual=frozen)
    with pytest.raises(ValueError, match="out is written to"):
        scatter_add(np.zeros(1, np.uint32), np.zeros(1, np.float32), frozen)


@pytest.mark.parametrize("loss_scale", [0.0, -1.0, np.nan, np.inf, 1e-40])
def test_useless_loss_scales_are_refused(loss_scale: float) -> None:
    x = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match="scale"):
        quantize_blockwise(
            x, np.empty(8, np.uint8), np.empty(1, np.float32), form=FORM, loss_scale=loss_scale
        )
