"""Secret file: from what the ranks share to keys that serve one session and no other.

The file's bytes never travel. Each rank draws a nonce, and all nonces go into the session's secret,
its own as it drew it. So what was recorded in another session is worth nothing in this one, however
the others' nonces were changed on their way.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

import torch
import torch.distributed as dist

from compressa.config import Config
from compressa.errors import ConfigError
from compressa.transports.base import call_failed
from compressa.transports.checks import Keys

_LEAST_BYTES, _MOST_BYTES = 16, 1 << 16
_NONCE_BYTES = 32


def read_secret(path: str) -> bytes:
    """Read a secret's file.

    Raises:
        ConfigError: It is missing, too short or too long, or somebody else may read it.
    """
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MOST_BYTES + 1).strip()
    except OSError as error:
        raise _wrong(path, f"cannot be read ({error.strerror})") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _wrong(path, f"may be used by others (mode {mode & 0o777:03o}): chmod 600 {path}")
    if not _LEAST_BYTES <= len(data) <= _MOST_BYTES:
        raise _wrong(path, f"has {len(data)} bytes; write another: openssl rand -hex 32 > {path}")
    return data


def session_keys(config: Config, group: dist.ProcessGroup) -> Keys:
    """Agree on keys; collective where frames are authenticated.

    Args:
        config: Says whether they are, and where the secret is.
        group: A Gloo process group that nobody uses yet.

    Raises:
        ConfigError: There is no secret; see `read_secret`.
        TransportError: Some rank does not take part.
    """
    path, rank = config.exchange.secret_file, group.rank()
    if not config.exchange.authenticate or path is None:
        return Keys(rank)
    secret = read_secret(path)
    own = torch.frombuffer(bytearray(secrets.token_bytes(_NONCE_BYTES)), dtype=torch.uint8)
    nonces = [torch.zeros_like(own) for _ in range(group.size())]
    try:
        group.allgather([nonces], [own]).wait()
    except RuntimeError as error:
        raise call_failed("the exchange of nonces", error) from error
    nonces[rank] = own
    salt = b"".join(nonce.numpy().tobytes() for nonce in nonces)
    return Keys(rank, hmac.digest(secret, salt, "sha256"))


def _wrong(path: str, what: str) -> ConfigError:
    return ConfigError(f"exchange.secret_file: {path} {what}")
