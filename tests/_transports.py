"""The transports that ranks of a test can open: the library's, and one that is the tests' own."""

from __future__ import annotations

from _gloo_group import ROW

from compressa.transports.table import TRANSPORTS

ROWS = {**TRANSPORTS, ROW.name: ROW}
ON_HOST = [name for name, row in ROWS.items() if not (row.device or row.prepare)]
TAGGED = [name for name in ON_HOST if not ROWS[name].ordered]
PACED = [name for name in ON_HOST if ROWS[name].paced]
AUTHENTICATED = [name for name in ON_HOST if ROWS[name].authenticated]


def add_own() -> None:
    """Let configurations name all of them; each rank that runs a test's functions calls it."""
    TRANSPORTS.update(ROWS)
