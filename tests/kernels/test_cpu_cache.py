"""A cold cache of kernels costs one process of a host some seconds, and no rank its deadline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy
import pytest
from _trees import uncompiled_tree
from compressa.kernels import KernelUnavailable, compiled
from compressa.kernels.compiled import one_at_a_time
from compressa.kernels.cpu import _cache

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEADLINE_S = 15.0
PATIENCE_S = 300.0
TURN = """
import time
from compressa.kernels.compiled import compile_once
compile_once("that", lambda: (print("begun", flush=True), time.sleep({})))
"""
KERNEL = """
import json
import numpy as np
from compressa.kernels import all_finite
from compressa.kernels.cpu import feedback
print(json.dumps({"finite": all_finite(np.zeros(9, np.float32))}))
stats = feedback._all_below.stats
print(json.dumps({"loaded": sum(stats.cache_hits.values()), "folder": stats.cache_path}))
"""


def environment(tree: Path | None, code: Path | None = None, **others: str) -> dict[str, str]:
    """Return that of a process that imports a tree, if any; its code is there, or elsewhere."""
    chosen = {
        "PYTHONPATH": f"{tree}{os.pathsep}{HERE}",
        "PYTHONSAFEPATH": "1",
        "NUMBA_CACHE_DIR": f"{code or f'{tree}/code'}",
    }
    return {**os.environ, **(chosen if tree else {}), **others}


def trained(tree: Path, codes: list[Path], store: Path) -> list[dict[str, list[str]]]:
    """Train a rank for each folder of code, as if each were a host; return what each compiled."""
    script, size = str(HERE / "_cold_rank.py"), str(len(codes))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), size, str(store), "bf16", str(DEADLINE_S)],
            env=environment(tree, code),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, code in enumerate(codes)
    ]
    try:
        said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


@contextmanager
def compiling(
    tree: Path, seconds: float, code: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold the lock to compile, for so long or until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", TURN.format(seconds)],
        env=environment(tree, code),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, list[str]]]]:
    """A tree that was not compiled before two ranks trained there; and what each compiled."""
    folder = tmp_path_factory.mktemp("host")
    tree = uncompiled_tree(folder / "tree")
    return tree, trained(tree, [tree / "code"] * 2, folder / "store")


@pytest.mark.ranks
def test_one_rank_of_a_host_compiles_a_kernel_at_registration_and_the_others_load(
    host: tuple[Path, list[dict[str, list[str]]]],
) -> None:
    _, ranks = host
    assert [rank["training"] for rank in ranks] == [[], []]
    compiled = [name for rank in ranks for name in set(rank["registration"])]
    assert compiled
    assert len(set(compiled)) == len(compiled)


@pytest.mark.ranks
def test_a_host_that_compiles_does_not_eat_the_deadline_of_one_that_has_compiled(
    host: tuple[Path, list[dict[str, list[str]]]], tmp_path: Path
) -> None:
    tree, cold = host[0], tmp_path / "cold"
    loop = next((tree / "code").glob("lowered_*"))  # not what it is about
    shutil.copytree(loop, cold / loop.name)
    with compiling(tree, DEADLINE_S + 2.0, cold):
        ranks = trained(tree, [tree / "code", cold], tmp_path / "store")
    assert ranks[0] == {"registration": [], "training": []}
    assert ranks[1]["registration"]
    assert ranks[1]["training"] == []


def test_whoever_dies_while_it_compiles_leaves_the_lock_to_the_next(tmp_path: Path) -> None:
    with compiling(tmp_path, 600) as first:
        command = [sys.executable, "-c", TURN.format(0)]
        waiting = subprocess.Popen(command, env=environment(tmp_path))
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(5)
        first.kill()
    assert waiting.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("kept", [True, False])
def test_what_takes_long_is_told_once(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_LONG_S", 0.05)
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path if kept else None)
    compiled.compile_once("quick", lambda: None)
    assert not caplog.messages
    compiled.compile_once("long", lambda: time.sleep(0.5))
    (said,) = caplog.messages
    assert (str(tmp_path) if kept else "again in each process") in said
    if kept:
        compiled.compile_once("long", lambda: time.sleep(0.5))  # as if it took long to load
        assert len(caplog.messages) == 1


def obedient(command: list[str]) -> list[str]:
    """Make a command obey the rights of files, which root does not."""
    if os.geteuid():
        return command
    if not shutil.which("setpriv"):
        pytest.skip("root may write everywhere, and there is no setpriv to change that")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--", *command]


def called(env: dict[str, str]) -> tuple[Any, str]:
    """Call a kernel in a process that obeys the rights of files; return what it says."""
    command = obedient([sys.executable, "-SP", "-c", KERNEL])  # knows no installed compressa
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0] == {"finite": True}
    return lines[1], done.stderr


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A tree without compiled code, as in an image."""
    return uncompiled_tree(tmp_path / "image") / "compressa"


def beside(image: Path, user: Path) -> dict[str, str]:
    """Return the environment of a process that imports a tree, and of a user's cache folder."""
    libraries = {str(Path(module.__file__).parents[1]) for module in (numpy, numba, llvmlite)}
    path = os.pathsep.join([str(image.parent), *sorted(libraries)])
    env = environment(None, PYTHONPATH=path, XDG_CACHE_HOME=str(user))
    env.pop("NUMBA_CACHE_DIR", None)
    return env


def test_kernels_compiled_in_a_read_only_image_are_used(image: Path, tmp_path: Path) -> None:
    env = beside(image, tmp_path / "user")
    built, _ = called(env)
    assert built["loaded"] == 0
    compiled = image / "kernels" / "cpu" / "__pycache__"
    assert Path(built["folder"]) == compiled
    compiled.chmod(0o555)
    used, warnings = called(env)
    assert used["loaded"] == 1, used
    assert Path(used["folder"]).is_relative_to(tmp_path / "user")
    assert "NUMBA_CACHE_DIR" not in warnings


def test_where_nothing_can_be_kept_it_is_said_once_and_all_works(
    image: Path, tmp_path: Path
) -> None:
    compiled = image / "kernels" / "cpu" / "__pycache__"
    compiled.mkdir()
    compiled.chmod(0o555)
    shut = tmp_path / "shut"
    shut.mkdir(0o555)
    env = beside(image, shut)
    used, warnings = called(env)
    assert used == {"loaded": 0, "folder": None}
    assert warnings.count("can not be kept in") == 1
    assert str(compiled) in warnings
    assert "set NUMBA_CACHE_DIR" in warnings


def test_a_change_of_what_a_kernel_imports_makes_its_code_stale(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    files = {
        "kernel": "from ._helper import (\n    f,\n)\nfrom .. import constant\n",
        "_helper": "from ._deeper import g\n",
        "_deeper": "x = 1\n",
        "stranger": "y = 1\n",
    }
    for name, text in files.items():
        (tmp_path / "inner" / f"{name}.py").write_text(text)
    (tmp_path / "constant.py").write_text("z = 1\n")

    def stamp() -> str:
        _cache.stamp.cache_clear()
        return _cache.stamp(tmp_path / "inner" / "kernel.py")

    first = stamp()
    (tmp_path / "inner" / "stranger.py").write_text("y = 2\n")
    assert stamp() == first
    for changed in ("inner/_deeper.py", "constant.py", "inner/kernel.py"):
        (tmp_path / changed).write_text("changed = True\n")
        last, first = first, stamp()
        assert first != last, changed
        (tmp_path / changed).write_text(files.get(Path(changed).stem, "z = 1\n"))
        first = stamp()


def test_code_outside_of_the_kernels_is_stale_when_one_that_it_imports_changes(
    tmp_path: Path,
) -> None:
    loop = tmp_path / "loop.py"
    loop.write_text("from compressa.kernels.cpu.checksums import checksum_of\n")
    checksums = Path(_cache.__file__).with_name("checksums.py")
    assert {checksums, checksums.with_name("_bytes.py")} <= _cache.sources_of(loop)
    assert checksums.with_name("onebit.py") not in _cache.sources_of(loop)


def test_who_holds_the_lock_for_too_long_is_not_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "turn.lock"
    with (
        one_at_a_time(lock),
        pytest.raises(KernelUnavailable, match="end it if it hangs"),
        one_at_a_time(lock, patience_s=0.05),
    ):
        pass
    with one_at_a_time(lock, patience_s=0.0):  # it was given back
        pass
