"""The transports that ranks of a test can open by themselves, from the library's table."""

from __future__ import annotations

from compressa.transports.table import TRANSPORTS

ON_HOST = [name for name, row in TRANSPORTS.items() if not (row.device or row.prepare)]
TAGGED = [name for name in ON_HOST if not TRANSPORTS[name].ordered]
PACED = [name for name in ON_HOST if TRANSPORTS[name].paced]
AUTHENTICATED = [name for name in ON_HOST if TRANSPORTS[name].authenticated]
