"""Pages of the API, from docstrings: public names only."""

from __future__ import annotations

import pkgutil
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from website.committed import ROOT

PAGES = {
    "compressa": "What a training script calls.",
    "compressa.integrations": "Hooks for trainers and launchers; each is imported when asked for.",
    "compressa.optim": "Optimizers whose ranks exchange compressed momenta.",
    "compressa.strategies": "When ranks meet.",
    "compressa.codecs": "Compressors of one vector.",
    "compressa.aggregators": "Compressors that exchange in rounds of their own.",
    "compressa.wrappers": "What goes around a compressor: feedback, warm-up.",
    "compressa.parameter_server": "Push and pull.",
    "compressa.testing": "What a compressor of your own is tested with.",
    "compressa.kernels": "Arithmetic on arrays.",
    "compressa.schedulers": "Who goes next.",
}
"""By module, what its page begins with; a module that there is not has no page."""


def linked() -> tempfile.TemporaryDirectory[str]:
    """Lay the three source folders out as the package that they are installed as.

    Whoever reads sources without importing them does not know how folders are mapped.
    """
    folder = tempfile.TemporaryDirectory(prefix="compressa-sources-")
    package = Path(folder.name) / "compressa"
    package.mkdir()
    for source in [*(ROOT / "compressa").iterdir(), ROOT / "kernels", ROOT / "schedulers"]:
        (package / source.name).symlink_to(source)
    return folder


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each page."""
    lines = []
    for module, sentence in PAGES.items():
        names = public_names(module)
        if names:
            file = f"{module}.md"
            lines.append(f"- [`{module}`]({file}): {sentence}")
            yield f"reference/{file}", page(module, sentence, names)
    yield "reference/index.md", "# Reference\n\n" + "\n".join(lines) + "\n"


def page(module: str, sentence: str, names: list[str]) -> str:
    """Return the page of a module's public names."""
    described = [f"::: {module}.{name}" for name in names]
    return "\n\n".join([f"# {module}", sentence, *described]) + "\n"


def public_names(module: str) -> list[str]:
    """Return what a module says is public, or else its public modules; nothing if there is none."""
    inside = module.partition(".")[2]
    home = ROOT if inside in ("kernels", "schedulers") else ROOT / "compressa"
    folder = home / inside
    if not (folder / "__init__.py").is_file():
        return []
    modules = sorted(one.name for one in pkgutil.iter_modules([str(folder)]))
    found = getattr(import_module(module), "__all__", modules)
    return [name for name in found if not name.startswith("_")]
