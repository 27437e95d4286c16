# python docs/compressor_table.py
"""Write what docs/guides/configuration.md says of each transport and policy.

Everything between `<!-- NAME:begin -->` and `<!-- NAME:end -->` there is worked out by
`website.tables`; what is new appears by its row in `compressa.transports.table` or
`compressa.schedulers`. Everything else is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # last: an installed package goes first

from harness.tables import with_block  # noqa: E402
from website.tables import policies_block, transports_block  # noqa: E402

CONFIGURATION = ROOT / "docs" / "guides" / "configuration.md"


def with_tables(text: str) -> str:
    """Return the text of docs/guides/configuration.md with its tables."""
    text = with_block(text, "transports", transports_block())
    return with_block(text, "policies", policies_block())


def main() -> None:
    """Bring the file up to date."""
    settings = CONFIGURATION.read_text(encoding="utf-8")
    CONFIGURATION.write_text(with_tables(settings), encoding="utf-8")


if __name__ == "__main__":
    main()
