"""A secret is read only from a file that nobody else may use, and is long enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressa.engine.start.secret_file import read_secret
from compressa.errors import ConfigError


def written(folder: Path, data: bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def test_a_newline_at_the_end_is_not_part_of_it(tmp_path: Path) -> None:
    assert read_secret(written(tmp_path, b"0123456789abcdef\n")) == b"0123456789abcdef"


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_its_user_may_do_what_he_likes(mode: int, tmp_path: Path) -> None:
    assert read_secret(written(tmp_path, bytes(range(64, 96)), mode))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_nobody_else_may_use_it(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path, bytes(range(64, 96)), mode)
    with pytest.raises(ConfigError, match=f"may be used by others .mode {mode:o}.: chmod 600"):
        read_secret(path)


@pytest.mark.parametrize(("size", "named"), [(0, 0), (15, 15), ((1 << 16) + 9, (1 << 16) + 1)])
def test_its_length_is_checked(size: int, named: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"has {named} bytes; write another: openssl rand"):
        read_secret(written(tmp_path, b"s" * size))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing cannot be read \(No such file"):
        read_secret(str(tmp_path / "nothing"))
