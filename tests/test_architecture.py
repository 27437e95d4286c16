"""The structure holds: packages, directions of imports, public names, light imports."""

from __future__ import annotations

import ast
import doctest
import graphlib
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import compressa.kernels
import compressa.schedulers
import pytest

import benchmarks
import compressa
import compressa.engine
import harness

ROOT = Path(__file__).resolve().parent.parent
HOMES = {
    "compressa": ROOT / "compressa",
    "kernels": ROOT / "kernels",
    "schedulers": ROOT / "schedulers",
}


def packages_on_disk() -> set[str]:
    found = set()
    for home, folder in HOMES.items():
        prefix = home if home == "compressa" else f"compressa.{home}"
        for init in folder.rglob("__init__.py"):
            inner = init.parent.relative_to(folder).parts
            found.add(".".join([prefix, *inner]))
    return found


def test_every_package_on_disk_is_in_the_wheel() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(declared["packages"]) == packages_on_disk()
    for home in ("kernels", "schedulers"):
        assert declared["package-dir"][f"compressa.{home}"] == home


def imported(file: Path) -> set[tuple[str, str]]:
    """What a file imports anywhere, be it in a function or for types only: modules and names."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                module = ".".join([*package_of(file, node.level), module]).rstrip(".")
            found |= {(module, alias.name) for alias in node.names}
    return found


def package_of(file: Path, level: int) -> Sequence[str]:
    """The names of the package that a relative import of a file begins in."""
    whole = file.relative_to(ROOT).parts[:-level]
    return whole if whole[0] not in ("kernels", "schedulers") else ("compressa", *whole)


def imported_modules(file: Path) -> set[str]:
    return {module for module, _ in imported(file)}


def imported_names(file: Path) -> set[str]:
    return {f"{module}.{name}".rstrip(".") for module, name in imported(file)}


@pytest.mark.parametrize("home", ["kernels", "schedulers"])
def test_the_ground_floor_knows_nothing_above_it(home: str) -> None:
    allowed = (f"compressa.{home}",)
    for file in HOMES[home].rglob("*.py"):
        names = imported_names(file)
        ours = {name for name in names if name.split(".")[0] in ("compressa", "torch")}
        above = {name for name in ours if not name.startswith(allowed)}
        assert not above, f"{file.relative_to(ROOT)} imports {sorted(above)}"


# A part may import itself, what is listed, and the leaves. Nothing imports upwards.
LEAVES = {"arrays", "bias", "errors", "files", "pacing", "parameters", "rates"}
LEAVES |= {"kernels", "schedulers"}
FLOORS = {
    "codecs": {"compressor"},
    "collectives": set(),
    "transports": {"collectives"},
    "aggregators": {"codecs", "collectives", "compressor"},
    "wrappers": {"aggregators", "codecs", "compressor"},
    "config": {
        "codecs",
        "collectives",
        "compressor",
        "compressors",
        "plugins",
        "transports",
        "wrappers",
    },
    "engine": {
        "aggregators",
        "codecs",
        "collectives",
        "compressor",
        "config",
        "tracing",
        "transports",
        "wrappers",
    },
    "hooks": {
        "aggregators",
        "checkpoint",
        "compressor",
        "config",
        "engine",
        "tracing",
        "transports",
    },
    "integrations": {
        "aggregators",
        "codecs",
        "collectives",
        "compressor",
        "config",
        "engine",
        "hooks",
        "parameter_server",
    },
    "overlap": {"compressor", "config", "engine", "hooks"},
    "strategies": {
        "aggregators",
        "codecs",
        "collectives",
        "compressor",
        "config",
        "engine",
        "hooks",
        "optim",
        "overlap",
        "parameter_server",
    },
    "optim": {"aggregators", "config", "engine", "hooks"},
    "parameter_server": {
        "aggregators",
        "codecs",
        "collectives",
        "compressor",
        "config",
        "engine",
        "transports",
        "wrappers",
    },
    "simulation": {
        "aggregators",
        "collectives",
        "compressor",
        "config",
        "engine",
        "tracing",
        "transports",
    },
    "testbed": set(),
    "tracing": set(),
    "link": {"aggregators", "collectives", "config", "engine", "machine"},
}


def parts_imported(file: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_names(file) if name.startswith("compressa.")}


@pytest.mark.parametrize("part", FLOORS)
def test_imports_inside_the_middleware_point_one_way(part: str) -> None:
    allowed = FLOORS[part] | LEAVES | {part}
    for file in (ROOT / "compressa" / part).rglob("*.py"):
        strangers = parts_imported(file) - allowed
        assert not strangers, f"{file.relative_to(ROOT)} imports {sorted(strangers)}"


def files_by_module() -> dict[str, Path]:
    found = {}
    for home, folder in {**HOMES, "benchmarks": ROOT / "benchmarks"}.items():
        prefix = f"compressa.{home}" if home in ("kernels", "schedulers") else home
        for file in folder.rglob("*.py"):
            inner = file.relative_to(folder).with_suffix("").parts
            found[".".join([prefix, *inner]).removesuffix(".__init__")] = file
    return found


def test_no_files_import_each_other() -> None:
    """Not even in functions or for types, nor by way of others."""
    files, graph = files_by_module(), {}
    for name, file in files.items():
        meant = {f"{m}.{n}" if f"{m}.{n}" in files else m for m, n in imported(file)}
        graph[name] = (meant & files.keys()) - {name}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_others_import_what_the_engine_says_is_theirs() -> None:
    lines = (compressa.engine.__doc__ or "").split("\n- ", 1)[1]
    told = set(re.findall(r"`([\w.]+)`", lines))
    used: set[str] = set()
    for file in (ROOT / "compressa").rglob("*.py"):
        if ROOT / "compressa" / "engine" in file.parents:
            continue
        for module, name in imported(file):
            if module.startswith("compressa.engine"):
                whole = f"{module}.{name}"
                is_module = (ROOT / f"{whole.replace('.', '/')}.py").exists()
                used.add((whole if is_module else module).removeprefix("compressa.engine."))
    assert used == told


def test_experiments_use_the_public_front_only() -> None:
    public = {"compressa", "compressa.errors", "compressa.testbed", "compressa.config"}
    facts = {"compressa.files", "compressa.machine"}  # what a measurement's file says of itself
    for home, allowed in {"experiments": public, "harness": public | facts}.items():
        for file in (ROOT / home).rglob("*.py"):
            ours = {m for m in imported_modules(file) if m.split(".")[0] == "compressa"}
            private = ours - allowed
            assert not private, f"{file.relative_to(ROOT)} imports {sorted(private)}"


def test_nothing_knows_the_benchmarks() -> None:
    homes = {home: {"benchmarks", "harness", "lab", "website"} for home in HOMES.values()}
    homes |= {ROOT / "experiments": {"benchmarks", "website"}, ROOT / "benchmarks": {"website"}}
    homes |= {ROOT / "harness": {"benchmarks", "lab", "website"}}
    for home, beside in homes.items():
        for file in home.rglob("*.py"):
            known = {m for m in imported_modules(file) if m.split(".")[0] in beside}
            assert not known, f"{file.relative_to(ROOT)} imports {sorted(known)}"


def test_public_names_are_pinned() -> None:
    assert compressa.__all__ == [
        "BackendUnavailable",
        "CompressaError",
        "CompressorStats",
        "Config",
        "ConfigError",
        "Handle",
        "OverlappedDataParallel",
        "PayloadError",
        "PeerLost",
        "StateError",
        "Stats",
        "Strategy",
        "Timeout",
        "TransportError",
        "apply_to_fsdp",
        "attach",
        "broadcast",
        "comm_hook",
        "compress_edge",
        "init_from_mpi",
        "init_from_tf_config",
        "load_config",
        "open_engine",
        "open_parameter_server",
        "register_comm_hook",
    ]
    for name in compressa.__all__:
        assert getattr(compressa, name) is not None
    assert compressa.__version__


def run(code: str, **options: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_import_loads_no_optional_library() -> None:
    done = run(
        "import sys, compressa, compressa.config, compressa.hooks;"
        "heavy = {'numba', 'cupy', 'mpi4py', 'typer', 'rich', 'matplotlib', 'plotly', 'sklearn',"
        "         'accelerate', 'lightning', 'transformers'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("home", ["kernels", "schedulers"])
def test_top_level_folders_refuse_their_bare_names(home: str) -> None:
    done = run(f"import {home}", cwd=ROOT)
    assert done.returncode != 0
    assert f"compressa.{home}" in done.stderr


WITH_FRAMEWORKS = {
    f"compressa.integrations.{name}"
    for name in ("_lightning", "accelerate", "lightning", "pytorch_lightning", "transformers")
}


def modules() -> list[str]:
    found = ["compressa"]
    found += [module.name for module in pkgutil.walk_packages(compressa.__path__, "compressa.")]
    for package in (compressa.kernels, compressa.schedulers, harness, benchmarks):
        prefix = package.__name__ + "."
        found += [module.name for module in pkgutil.walk_packages(package.__path__, prefix)]
    # Those that import a framework are imported by the tests of that, which takes seconds for each.
    return sorted(set(found) - WITH_FRAMEWORKS)


def test_every_module_imports_and_its_examples_run() -> None:
    failures = []
    attempted = 0
    for name in modules():
        result = doctest.testmod(importlib.import_module(name))
        attempted += result.attempted
        if result.failed:
            failures.append(name)
    assert not failures
    assert attempted >= 15


def test_files_stay_readable() -> None:
    beside = (ROOT / name for name in ("harness", "benchmarks", "experiments", "website"))
    for home in (*HOMES.values(), *beside):
        for file in home.rglob("*.py"):
            assert len(file.read_text().splitlines()) <= 400, file.relative_to(ROOT)
            if file.read_text().strip():
                assert ast.get_docstring(ast.parse(file.read_text())), file.relative_to(ROOT)
