"""Where compiled kernels are kept between processes: numba's cache, which may be read-only.

Numba keeps code in the first folder of three that it can write to: `NUMBA_CACHE_DIR`, `__pycache__`
beside the source, and the user's cache folder. Here code is also loaded from those of them that can
only be read, so that kernels compiled when an image was built serve whoever runs it. Where no
folder can be written, code stays in memory, and a warning says so once.

Code is stale when its source changes: the file of the function, and all files that it imports from,
whose helpers are compiled into it.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
    _Cache,
)

_IMPORT = re.compile(r"^from (\.+)(\w*) import \(?\s*(\w+)", re.MULTILINE)
_FROM_OUTSIDE = re.compile(r"^from compressa\.kernels\.([\w.]+) import", re.MULTILINE)
_KERNELS = Path(__file__).parents[1]


@cache
def _warn_once(folder: str, error: str) -> None:
    warnings.warn(
        f"compiled kernels can not be kept in {folder} ({error}), so every process compiles them "
        "again; set NUMBA_CACHE_DIR to a folder that can be written",
        RuntimeWarning,
        stacklevel=2,
    )


def _imports(file: Path) -> set[Path]:
    """The files beside or above a file, or of the kernels, that it imports from."""
    text, found = file.read_text(encoding="utf-8"), set()
    for dots, module, name in _IMPORT.findall(text):
        found.add(file.parents[len(dots) - 1] / f"{module or name}.py")
    for module in _FROM_OUTSIDE.findall(text):
        found.add(_KERNELS / f"{module.replace('.', '/')}.py")
    return {path for path in found if path.exists()}


def sources_of(file: Path) -> set[Path]:
    """A source file and all that it imports from."""
    sources, new = {file}, {file}
    while new:
        new = {path for source in new for path in _imports(source)} - sources
        sources |= new
    return sources


@cache
def stamp(file: Path) -> str:
    """Digest of a source file and of all that it imports from."""
    sources = sorted(sources_of(file))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


class _Stamped:
    """Makes one of numba's locators look at imported files, too."""

    _py_file: str

    def get_source_stamp(self) -> str:
        return stamp(Path(self._py_file))


class _Readable(_Stamped):
    """Makes one of numba's locators find a folder that can not be written."""

    def ensure_cache_path(self) -> None:
        folder: str = self.get_cache_path()  # type: ignore[attr-defined]
        if not Path(folder).is_dir():
            raise FileNotFoundError(folder)


_LOCATORS = (UserProvidedCacheLocator, InTreeCacheLocator, UserWideCacheLocator)


def _kind(how: type, locators: tuple[type, ...]) -> type[FunctionCache]:
    """A class of caches that keep code in the first folder that one of the locators finds."""
    classes = [type(locator.__name__, (how, locator), {}) for locator in locators]
    implementation = type("Kernels", (CompileResultCacheImpl,), {"_locator_classes": classes})
    return type("Cache", (FunctionCache,), {"_impl_class": implementation})


_WRITABLE = _kind(_Stamped, _LOCATORS)
_READABLE = [_kind(_Readable, (locator,)) for locator in _LOCATORS]


def _opened(kind: type[FunctionCache], function: Any) -> FunctionCache | None:
    try:
        return kind(function)
    except RuntimeError:  # numba has found no folder
        return None


class KernelCache(_Cache):
    """The compiled code of one function, in all folders where it may be.

    Args:
        function: The function in Python.
    """

    def __init__(self, function: Any) -> None:
        self._writable = _opened(_WRITABLE, function)
        found = [self._writable, *(_opened(kind, function) for kind in _READABLE)]
        self._caches = {each.cache_path: each for each in found if each is not None}
        self._beside = str(Path(function.__code__.co_filename).parent / "__pycache__")

    @property
    def cache_path(self) -> str | None:
        """The folder that new code goes to; None if there is none."""
        return None if self._writable is None else self._writable.cache_path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for a signature, or None if it is nowhere."""
        for each in self._caches.values():
            try:
                found = each.load_overload(sig, target_context)
            except PermissionError:  # another user's
                continue
            if found is not None:
                return found
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the code for a signature, if that can be done."""
        if self._writable is None:
            _warn_once(self._beside, "neither there nor in the user's folder may this user write")
            return
        try:
            self._writable.save_overload(sig, data)
        except OSError as error:
            _warn_once(self._writable.cache_path, error.strerror or str(error))

    def enable(self) -> None:
        """Load and save from now on."""
        for each in self._caches.values():
            each.enable()

    def disable(self) -> None:
        """Neither load nor save from now on."""
        for each in self._caches.values():
            each.disable()

    def flush(self) -> None:
        """Forget what is kept."""
        if self._writable is not None:
            self._writable.flush()
