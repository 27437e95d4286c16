"""Pages for readers and their fenced blocks, as the tests of documents see them.

A block's info string is its language, and a title or, in braces, further options, such as
`python title="train.py"` or `{ .python data-fragment="it needs a GPU" }`:

- `title="FILE"`: the block is that file; scripts, configurations and commands of the page find it.
- `title="output"`, of a `text` block: what the page's Python prints on rank 0.
- `data-fragment="WHY"`, of Python: it is not run but parsed, for that reason.
- `data-tested="FILE"`: a test file of its own has it instead of the tests of all pages.

Without braces MkDocs takes no option but a title.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
OPENED = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
OPTION = re.compile(r'([\w-]+)="([^"]*)"')
IN_BRACES = re.compile(r"\{ \.(.*) \}")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: Where it stands.
        line: The number of its first line there.
        language: The first word of its info string.
        options: The others.
        code: What is between the fences, without their indentation.
    """

    page: Path
    line: int
    language: str
    options: dict[str, str]
    code: str

    @property
    def location(self) -> str:
        """The page and the line."""
        return f"{name(self.page)}:{self.line}"

    @property
    def title(self) -> str:
        """The file that it is, if any."""
        return self.options.get("title", "")

    @property
    def runs(self) -> bool:
        """Whether it is Python that is run with its page."""
        elsewhere = {"data-fragment", "data-tested"} & self.options.keys()
        return self.language == "python" and not elsewhere


def name(page: Path) -> str:
    """Return a page's path from the root."""
    return page.relative_to(ROOT).as_posix()


def pages() -> list[Path]:
    """Return the README and all pages below docs/, whoever wrote them."""
    return [README, *sorted(DOCS.rglob("*.md"))]


@cache
def text(page: Path) -> str:
    """Return a page's text."""
    return page.read_text(encoding="utf-8")


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Return the fenced blocks of a page.

    Raises:
        ValueError: One is not closed, or its info string is not as this module says.
    """
    return tuple(blocks_of(page, text(page)))


def blocks_of(page: Path, content: str) -> list[Block]:
    """Return the fenced blocks of a text; see `blocks`."""
    found: list[Block] = []
    lines = iter(enumerate(content.splitlines(), 1))
    for number, line in lines:
        opened = OPENED.match(line)
        if opened is None:
            continue
        code: list[str] = []
        for _, inner in lines:
            if inner.strip() == opened["fence"]:
                break
            code.append(inner)
        else:
            raise ValueError(f"{page}:{number}: the block is not closed")
        language, options = info_of(opened["info"].strip(), f"{page}:{number}")
        inside = textwrap.dedent("".join(f"{one}\n" for one in code))
        found.append(Block(page, number, language, options, inside))
    return found


def info_of(info: str, location: str) -> tuple[str, dict[str, str]]:
    """Return the language and the options of an info string.

    Raises:
        ValueError: It is not as this module says.
    """
    braced = IN_BRACES.fullmatch(info)
    language, _, rest = (braced[1] if braced else info).partition(" ")
    options = dict(OPTION.findall(rest))
    if OPTION.sub("", rest).strip():
        raise ValueError(f"{location}: not an option: {rest}")
    if not braced and options.keys() - {"title"}:
        raise ValueError(f"{location}: write {{ .{info} }}, or MkDocs shows the fence as text")
    return language, options


def running_text(page: Path) -> str:
    """Return a page without its fenced blocks."""
    kept, fence = [], ""
    for line in text(page).splitlines():
        opened = OPENED.match(line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif opened:
            fence = opened["fence"]
        else:
            kept.append(line)
    return "\n".join(kept)


def all_blocks(language: str = "") -> list[Block]:
    """Return the blocks of all pages, or those of a language."""
    found = (block for page in pages() for block in blocks(page))
    return [block for block in found if language in ("", block.language)]


def block_with(page: Path, language: str, part: str) -> Block:
    """Return the one block of a page that has some text."""
    (found,) = (b for b in blocks(page) if b.language == language and part in b.code)
    return found
