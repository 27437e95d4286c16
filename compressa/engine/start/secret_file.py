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

from compressa.config import Config
from compressa.errors import ConfigError, PayloadError
from compressa.transports.checks import Keys
from compressa.transports.rendezvous import AllGather

_LEAST_BYTES, _MOST_BYTES = 16, 1 << 16
_NONCE_BYTES = 32


def read_secret(path: str) -> bytes:
    """Read a secret's file: 16 bytes to 64 KiB, blanks at its ends apart.

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


def session_keys(config: Config, rank: int, all_gather: AllGather) -> Keys:
    """Agree on keys; collective where frames are authenticated.

    Args:
        config: Says whether they are, and where the secret is.
        rank: This rank.
        all_gather: Brings bytes of every rank to every rank, within a deadline.

    Returns:
        Keys that no other session has; those of checksums where nothing is authenticated.

    Raises:
        ConfigError: There is no secret; see `read_secret`.
        PayloadError: Some rank has another one.
    """
    exchange = config.exchange
    if not exchange.authenticate or exchange.secret_file is None:
        return Keys(rank)
    secret, own = read_secret(exchange.secret_file), secrets.token_bytes(_NONCE_BYTES)
    nonces = all_gather(own, "nonces", exchange.start_wait_s)
    nonces[rank] = own
    session = hmac.digest(secret, b"".join(nonces), "sha256")
    proofs = all_gather(_proof(session, rank), "proofs", exchange.start_wait_s)
    for peer, proof in enumerate(proofs):
        if not hmac.compare_digest(proof, _proof(session, peer)):
            raise PayloadError(
                f"what rank {peer} told rank {rank} in torch's store is not authentic: it was "
                "changed, or the ranks have different secrets"
            )
    return Keys(rank, session)


def _proof(session: bytes, rank: int) -> bytes:
    """Return what only somebody who knows the session's secret can say."""
    return hmac.digest(session, f"rank {rank}".encode(), "sha256")


def _wrong(path: str, what: str) -> ConfigError:
    return ConfigError(f"exchange.secret_file: {path} {what}")
