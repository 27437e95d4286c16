"""Ranks without connections tell each other by torch's store what they know."""

from __future__ import annotations

import hmac
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from compressa.config import Config
from compressa.engine.start.secret_file import session_keys
from compressa.engine.start.store_gather import all_gather_by
from compressa.errors import PayloadError

SIZE = 3


@pytest.fixture(params=["hash", "file", "part"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "file":
        return dist.FileStore(str(tmp_path / "store"), SIZE)
    return dist.HashStore() if request.param == "hash" else dist.PrefixStore("p", dist.HashStore())


def on_all(work: Any) -> list[Any]:
    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(work, range(SIZE)))


def test_all_have_the_bytes_of_all(store: Any) -> None:
    told = [bytes([0, 255, rank]) * (rank + 1) for rank in range(SIZE)]

    def gather(rank: int) -> list[list[bytes]]:
        all_gather = all_gather_by(store, rank, SIZE)
        return [all_gather(told[rank], "one", 10.0), all_gather(told[2 - rank], "two", 10.0)]

    assert on_all(gather) == [[told, told[::-1]]] * SIZE


def test_who_does_not_come_is_waited_for_until_the_deadline() -> None:
    with pytest.raises(RuntimeError):
        all_gather_by(dist.HashStore(), 0, SIZE)(b"", "one", 0.1)


def keys_of(store: Any, folder: Path, secrets: list[bytes]) -> list[Any]:
    def agree(rank: int) -> Any:
        path = folder / str(rank)
        path.write_bytes(secrets[rank])
        path.chmod(0o600)
        exchange = {"authenticate": True, "secret_file": str(path)}
        config = Config.model_validate({"exchange": exchange})
        try:
            return session_keys(config, rank, all_gather_by(store, rank, SIZE)).secret
        except PayloadError as error:
            return str(error)

    return on_all(agree)


def test_a_session_has_keys_that_no_other_had(tmp_path: Path) -> None:
    first, second = (keys_of(dist.HashStore(), tmp_path, [b"s" * 32] * SIZE) for _ in range(2))
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    assert len(first[0]) == hmac.new(b"", digestmod="sha256").digest_size


def test_ranks_with_another_secret_are_named_before_anybody_connects(tmp_path: Path) -> None:
    secrets = [b"s" * 32, b"s" * 32, b"t" * 32]
    said = keys_of(dist.HashStore(), tmp_path, secrets)
    named = [2, 2, 0]
    for rank, (text, other) in enumerate(zip(said, named, strict=True)):
        assert text.startswith(f"what rank {other} told rank {rank} in torch's store is not auth")
        assert "different secrets" in text
