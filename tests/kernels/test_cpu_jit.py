"""Functions that are compiled for compiled callers only are never called from Python.

They have no entry for Python, and such a call would crash.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels" / "cpu"
COMPILED = {"jit", "lean", "nested", "lean_nested", "inlined"}
PACKAGES = {"", "compressa.kernels.cpu"}
NESTED = {"nested", "lean_nested", "inlined"}


def decorated(tree: ast.Module) -> dict[str, str]:
    """Return the compiled functions of a file, by name, and how they are compiled."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Name) and decorator.id in COMPILED:
                    found[node.name] = decorator.id
    return found


def known_as(tree: ast.Module, nested: set[tuple[str, str]], own: str) -> set[str]:
    """Return what a file calls the nested functions that it has or imports."""
    names = {name for file, name in nested if file == own}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package, _, source = (node.module or "").rpartition(".")
            for name in node.names:
                known = name.asname or name.name
                if package in PACKAGES and (source, name.name) in nested:
                    names.add(known)
                if (node.module or "") in PACKAGES:
                    names |= {f"{known}.{inner}" for file, inner in nested if file == name.name}
    return names


def called_from_python(tree: ast.Module) -> set[str]:
    """Return what a file's own code calls, but for its compiled functions."""
    compiled, found = decorated(tree), set()
    for node in tree.body:
        if not (isinstance(node, ast.FunctionDef) and node.name in compiled):
            inner = list(ast.walk(node))
            calls = {ast.unparse(call.func) for call in inner if isinstance(call, ast.Call)}
            found |= calls - {own.name for own in inner if isinstance(own, ast.FunctionDef)}
    return found


def test_what_has_no_entry_for_python_is_called_by_compiled_code_only() -> None:
    kernels = {file.stem: ast.parse(file.read_text()) for file in KERNELS.glob("*.py")}
    nested = {
        (file, name)
        for file, tree in kernels.items()
        for name, how in decorated(tree).items()
        if how in NESTED
    }
    assert len(nested) > 100
    trees = dict(kernels)
    for file in (*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tests/**/*.py")):
        if "kernels.cpu" in (text := file.read_text(encoding="utf-8")):
            trees[f"{file.parent.name}/{file.stem}"] = ast.parse(text)
    wrong = {
        f"{file}: {name}"
        for file, tree in trees.items()
        for name in known_as(tree, nested, file) & called_from_python(tree)
    }
    assert not wrong


def test_a_call_from_python_is_found() -> None:
    tree = ast.parse(
        "from . import _b as b\nfrom ._b import f as g\n"
        "@jit\ndef fine(x):\n    return g(x) + b.f(x)\n"
        "def bad(x):\n    return g(x)\ndef worse(x):\n    return b.f(x)\n"
    )
    assert known_as(tree, {("_b", "f")}, "_a") == {"g", "b.f"}
    assert known_as(tree, {("_b", "f")}, "_a") & called_from_python(tree) == {"g", "b.f"}
