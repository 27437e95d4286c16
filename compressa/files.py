"""Files: written whole or not at all, and read up to a size.

Who writes a file holds a lock on what it has written so far, which the kernel gives back when the
writer dies. So what a killed writer has left can be told from what another is writing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import IO, TypeVar

from pydantic import BaseModel, ValidationError

from compressa.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def read(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read a file.

    Args:
        path: Where it is.
        most_bytes: What it may have; no more is read.

    Raises:
        OSError: It cannot be read.
        ValueError: It is larger, or there is no such path.
    """
    with Path(path).open("rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes >> 20} MiB, the most that is read")
    return data


def reason(error: OSError | ValueError) -> str:
    """Return why `read` has failed, in words, on one line."""
    return getattr(error, "strerror", None) or str(error)


def validated(model: type[Model], text: str | bytes, where: str, fix: str) -> Model:
    """Read JSON as a model.

    Args:
        model: What it must be.
        text: JSON, from outside.
        where: What messages call it.
        fix: What to do if it is wrong, for messages.

    Raises:
        ConfigError: It is none; the message names the place.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ConfigError(f"{where}: {place}: {first['msg']}; {fix}") from error


def write(file: Path, data: bytes) -> None:
    """Write a file so that it is never seen half written: its bytes are on disk before its name.

    Args:
        file: Where; one that is there is replaced.
        data: All of it.

    Raises:
        OSError: It cannot be written; the folder is as it was.
    """
    while not _written(file, data):  # swept up before it was locked
        pass


def sweep(folder: Path, pattern: str) -> None:
    """Remove what killed writers have left of files, and nothing that is being written.

    On a file system without locks nothing is removed.

    Args:
        folder: Where they were being written.
        pattern: That the files' names match.
    """
    for temporary in folder.glob(f".{pattern}.*"):
        with contextlib.suppress(OSError), temporary.open("rb") as stream:
            _lock(stream, wait=False)
            temporary.unlink()


def _written(file: Path, data: bytes) -> bool:
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as stream:
            with contextlib.suppress(OSError):
                _lock(stream, wait=True)
            if not temporary.exists():
                return False
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(file)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _lock(stream: IO[bytes], *, wait: bool) -> None:
    """Take the lock of who writes a file.

    Raises:
        OSError: Another has it, or there are no locks here.
    """
    try:
        import fcntl  # there is none on Windows
    except ImportError as error:
        raise OSError(str(error)) from error
    fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
