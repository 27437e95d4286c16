"""The text of the running Python's standard library as training data: real, and always there.

Files are taken in the order of a hash of their relative path, so a bounded corpus is a sample of
the whole library and the same on every rank, and whole files go to the validation split: no line
of a validation file was ever trained on. Files with equal content count once.

Characters are mapped to a fixed vocabulary of :data:`VOCABULARY` tokens (newline, tab, printable
ASCII, and one for all the rest), so a model's size does not depend on the Python that runs it.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

VOCABULARY = 98
CORPUS_LIMIT_BYTES = 4_000_000
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
_VALIDATION_SHARE = 10  # one file in ten


@dataclass(frozen=True)
class Corpus:
    """Token streams (uint8) of the two splits, and which files each is made of."""

    train: Tensor
    validation: Tensor
    train_files: tuple[str, ...]
    validation_files: tuple[str, ...]


def _token_table() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    table = np.full(256, VOCABULARY - 1, np.uint8)
    table[ord("\n")] = 0
    table[ord("\t")] = 1
    table[32:127] = np.arange(2, 97)
    return table


def tokens(text: bytes) -> Tensor:
    """Tokens, uint8 of shape (len(text),), each below :data:`VOCABULARY`."""
    return torch.from_numpy(_token_table()[np.frombuffer(text, np.uint8)])


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _library_files(root: Path) -> Iterator[tuple[str, Path]]:
    """(relative name, path) of the library's own modules, in the order of the name's hash."""
    found = {
        path.relative_to(root).as_posix(): path
        for path in root.rglob("*.py")
        if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts)
    }
    for name in sorted(found, key=lambda name: _digest(name.encode())):
        yield name, found[name]


@cache
def standard_library(limit_bytes: int = CORPUS_LIMIT_BYTES) -> Corpus:
    """The corpus of this interpreter, at most ``limit_bytes`` of text in all."""
    texts: dict[str, dict[str, bytes]] = {"train": {}, "validation": {}}
    seen: set[bytes] = set()
    total_bytes = 0
    for name, path in _library_files(Path(sysconfig.get_paths()["stdlib"])):
        text = path.read_bytes()
        content = _digest(text)
        if content in seen or total_bytes + len(text) > limit_bytes:
            continue
        seen.add(content)
        total_bytes += len(text)
        held_back = _digest(name.encode())[-1] % _VALIDATION_SHARE == 0
        texts["validation" if held_back else "train"][name] = text
    return Corpus(
        tokens(b"".join(texts["train"].values())),
        tokens(b"".join(texts["validation"].values())),
        tuple(texts["train"]),
        tuple(texts["validation"]),
    )
