"""Tables of the contract tables' rows: compressors, transports, policies.

docs/guides/configuration.md has those of transports and policies, so that it reads well as a file;
that of compressors is made with the site.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compressa.schedulers import POLICIES

from compressa.compressors import COMPRESSORS, Entry, Family
from compressa.facts import BUSIEST_OF, RANKS, Facts, facts
from compressa.transports.table import TRANSPORTS
from harness.tables import Table, markdown

_BLANK = ""
_BUSIEST = f"busiest of {', '.join(map(str, BUSIEST_OF[:-1]))} and {BUSIEST_OF[-1]} ranks"
_TITLES = ("ratio", _BUSIEST, f"exchange on {RANKS} ranks", "summable")


def overview_block() -> str:
    """Return the table of all compressors, by family."""
    titles = ("name", "what is sent", *_TITLES, "error", "state", "paper")
    return _table(titles, _overview_rows())


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


def _overview_rows() -> Iterator[list[str]]:
    for family, entries in by_family():
        yield [f"**{family}**", *[_BLANK] * 8]
        for own in map(facts, entries):
            link = f"[`{own.name}`]({own.name}.md)"
            state = f"{own.state_bytes:.3g}"
            yield [link, own.summary, *_numbers(own), state, own.paper or "-"]


def _numbers(own: Facts) -> list[str]:
    ratio, busiest = f"{own.ratio:.1f}", own.busiest_text
    return [ratio, busiest, own.exchange, own.summable_text, own.error_text]


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    numbers = frozenset({"ratio", _BUSIEST, "state"})
    return markdown(Table("", tuple(titles), [tuple(row) for row in rows], numbers))
