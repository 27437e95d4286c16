"""Every command that a page shows exists, with its options: in sh blocks and in running text."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from _documents import DOCS, ROOT, all_blocks, blocks, name, pages, running_text

from compressa import cli

LAUNCHERS = {"torchrun", "mpiexec", "srun"}
GROUPS = ("config", "testbed", "trace")
QUICKSTART = DOCS / "quickstart.md"
SPOKEN = re.compile(r"`((?:make|compressa|python|pip) [^`]+)`")


class Command(NamedTuple):
    """A line that a reader would type."""

    page: Path
    location: str
    words: list[str]


def of_blocks() -> list[Command]:
    found = []
    for block in all_blocks("sh"):
        for line in block.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)  # a variable of the environment
            if words:
                found.append(Command(block.page, block.location, words))
    return found


def of_text() -> list[Command]:
    """Commands in running text: `make check`, `compressa explain`, `pip install x`."""
    found = ((page, SPOKEN.findall(running_text(page))) for page in pages())
    return [Command(p, name(p), shlex.split(line)) for p, lines in found for line in lines]


COMMANDS = [*of_blocks(), *of_text()]


def of(program: str) -> list[Command]:
    return [command for command in COMMANDS if command.words[0] == program]


def test_no_command_is_of_an_unknown_kind() -> None:
    known = {"make", "compressa", "python", "pip", "uv", *LAUNCHERS}
    assert not [command for command in COMMANDS if command.words[0] not in known]
    assert shutil.which("torchrun", path=str(Path(sys.executable).parent))


def test_uv_knows_its_options() -> None:
    uv = Path(sys.executable).parent / "uv"
    for command in of("uv"):
        words = [word for word in command.words[1:3] if not word.startswith("-")]
        shown = subprocess.run([uv, *words, "--help"], capture_output=True, text=True, check=True)
        for option in (word for word in command.words if word.startswith("--")):
            assert option in shown.stdout


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    shared = re.findall(r"^([\w -]+):", makefile, re.M)
    targets |= {word for line in shared for word in line.split()}
    named = {command.words[1] for command in of("make")}
    assert {"demo", "test"} <= named
    assert named <= targets


def test_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for command in of("pip"):
        assert command.words[1] == "install", command
        for word in command.words[2:]:
            if extras := re.fullmatch(r"(?:\.|compressa)\[(.+)\]", word):
                assert set(extras[1].split(",")) <= project["optional-dependencies"].keys(), command


def started(command: Command) -> tuple[str, list[str]]:
    """Return the script or `-m module` that a command starts, and what follows."""
    words = [word for text in command.words for word in (text.split() if " " in text else [text])]
    for at, word in enumerate(words):
        if word == "-m":
            return f"-m {words[at + 1]}", words[at + 2 :]
        if word.rstrip(";").endswith(".py"):
            return word.rstrip(";"), words[at + 1 :]
    raise AssertionError(f"{command.location}: it starts nothing: {shlex.join(words)}")


def test_scripts_and_modules_exist() -> None:
    """A script is a file of the repository, or one that the page or Quickstart shows."""
    shown = {block.title for block in blocks(QUICKSTART)}
    for command in COMMANDS:
        if command.words[0] in {"python", *LAUNCHERS}:
            what, _ = started(command)
            if what.startswith("-m "):
                assert importlib.util.find_spec(what[3:]), command
            else:
                own = {block.title for block in blocks(command.page)}
                assert what in own | shown or (ROOT / what).exists(), command


def of_cli() -> dict[str, list[str]]:
    """Return what `compressa` is called with, by the line; not what `testbed exec` is given."""
    lines = [command.words[1:] for command in of("compressa")]
    for command in COMMANDS:
        if command.words[0] in {"python", *LAUNCHERS} and "-m" in command.words:
            what, words = started(command)
            lines += [words] if what == "-m compressa" else []
    own = [words[: words.index("--")] if "--" in words else words for words in lines]
    return {shlex.join(words): words for words in own}


@pytest.mark.parametrize("words", [pytest.param(w, id=line) for line, w in of_cli().items()])
def test_commands_and_their_options_exist(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    named = [word for word in words if re.fullmatch("[a-z]+", word)]
    named = named[:2] if named[0] in GROUPS else named[:1]
    with pytest.raises(SystemExit) as caught:
        cli.main([*named, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert f"compressa {' '.join(named)}" in shown
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert option in shown


def test_every_subcommand_is_on_some_page() -> None:
    assert set(cli.COMMANDS) <= {words[0] for words in of_cli().values()}
