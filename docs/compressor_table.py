# python docs/compressor_table.py
"""Write what docs/ says of each compressor, transport and policy.

Everything between `<!-- NAME:begin -->` and `<!-- NAME:end -->` in the files is worked out here
from the contract tables, `compressa.facts` and the docstrings; what is new appears by its row in
`compressa.compressors`, `compressa.transports.table` or `compressa.schedulers`. Everything else
in them is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from compressa.schedulers import POLICIES

import compressa.wrappers
from compressa.compressors import COMPRESSORS, Entry, Family
from compressa.facts import BUSIEST_OF, RANKS, Facts, facts
from compressa.page import described, page
from compressa.transports.table import TRANSPORTS

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # last: an installed package goes first

from harness.tables import Table, markdown, with_block  # noqa: E402

PAGE = ROOT / "docs" / "compressors" / "index.md"
CONFIGURATION = ROOT / "docs" / "guides" / "configuration.md"
_BLANK = ""
_BUSIEST = f"busiest of {', '.join(map(str, BUSIEST_OF[:-1]))} and {BUSIEST_OF[-1]} ranks"
_TITLES = ("ratio", _BUSIEST, f"exchange on {RANKS} ranks", "summable")


def overview_block() -> str:
    """Return the table of docs/compressors/index.md, by family."""
    titles = ("name", "what is sent", *_TITLES, "error", "state", "paper")
    return _table(titles, _overview_rows())


def sections_block() -> str:
    """Return a section per compressor, by family."""
    parts = []
    for family, entries in by_family():
        parts.append(f"## {str(family).capitalize()}\n")
        parts += [page(entry, facts(entry), "###") for entry in entries]
    return "\n".join(parts)


def wrappers_block() -> str:
    """Return a section per wrapper."""
    names = compressa.wrappers.__all__
    classes = ((name, getattr(compressa.wrappers, name)) for name in names)
    return "\n".join(f"### {name}\n\n{described(of)}\n" for name, of in classes)


def by_family() -> Iterator[tuple[Family, list[Entry]]]:
    """Yield the families that have members, and their rows."""
    for family in Family:
        entries = [entry for entry in COMPRESSORS.values() if entry.family is family]
        if entries:
            yield family, entries


def transports_block() -> str:
    """Return the table of transports."""
    titles = ("transport", "what it is", "messages", "gradients", "paced", "authenticated")
    rows = [
        [
            f"`{row.name}`",
            row.summary,
            "in one order" if row.ordered else "by name",
            f"on {row.device}" if row.device else "anywhere",
            "yes" if row.paced else "no",
            "yes" if row.authenticated else "no",
            "several" if row.connections else "one",
            row.needs,
        ]
        for row in TRANSPORTS.values()
    ]
    return _table((*titles, "connections", "needs"), rows)


def policies_block() -> str:
    """Return the table of scheduling policies."""
    rows = [
        [f"`{row.name}`", row.summary, "yes" if row.overtaking else "no", row.paper or "-"]
        for row in POLICIES.values()
    ]
    return _table(("policy", "what it does", "overtakes", "paper"), rows)


def with_page_blocks(text: str) -> str:
    """Return the text of docs/compressors/index.md with all that is worked out."""
    text = with_block(text, "overview", overview_block())
    text = with_block(text, "sections", sections_block())
    return with_block(text, "wrappers", wrappers_block())


def with_tables(text: str) -> str:
    """Return the text of docs/guides/configuration.md with its tables."""
    text = with_block(text, "transports", transports_block())
    return with_block(text, "policies", policies_block())


def _overview_rows() -> Iterator[list[str]]:
    for family, entries in by_family():
        yield [f"**{family}**", *[_BLANK] * 8]
        for own in map(facts, entries):
            link = f"[`{own.name}`](#{own.name})"
            state = f"{own.state_bytes:.3g}"
            yield [link, own.summary, *_numbers(own), state, own.paper or "-"]


def _numbers(own: Facts) -> list[str]:
    ratio, busiest = f"{own.ratio:.1f}", own.busiest_text
    return [ratio, busiest, own.exchange, own.summable_text, own.error_text]


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    numbers = frozenset({"ratio", _BUSIEST, "state"})
    return markdown(Table("", tuple(titles), [tuple(row) for row in rows], numbers))


def main() -> None:
    """Bring the files up to date."""
    settings = CONFIGURATION.read_text(encoding="utf-8")
    CONFIGURATION.write_text(with_tables(settings), encoding="utf-8")
    PAGE.write_text(with_page_blocks(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
