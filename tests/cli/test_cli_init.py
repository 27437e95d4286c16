"""`compressa init` writes a file that is valid and says why, and replaces none unasked."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import printed, refused, run
from test_link_file import favouring, write_link

from compressa.cli._starter import Question, starter
from compressa.compressors import COMPRESSORS
from compressa.config import load_config
from compressa.recommend import LEVELS, Model, Recommendation

SMALL = ["--link", "100mbit", "--ranks", "4", "--parameters", "1.5M"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def typed(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{answer}\n" for answer in answers)))


def text() -> str:
    return Path("compressa.toml").read_text(encoding="utf-8")


def test_the_file_is_valid_and_repeats_by_its_own_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = printed(capsys, "init", *SMALL)
    assert said.startswith("compressa.toml: powersgd, of none, bf16, int8, powersgd.")
    first, written = text().splitlines()[0], text()
    assert printed(capsys, "config", "check", "compressa.toml") == "OK: compressa.toml\n"
    words = shlex.split(first.removeprefix("# Written by: "))
    assert words[:2] == ["compressa", "init"]
    assert run(*words[1:], "--force") == 0
    assert text() == written


CHOICES = [(level, name) for level in LEVELS for name in LEVELS[level].names]


@pytest.mark.parametrize(("level", "name"), CHOICES)
def test_whatever_is_chosen_is_written_with_reasons(name: str, level: str) -> None:
    chosen = Recommendation(name, level, dict.fromkeys(LEVELS[level].names, 1.0))
    question, out = Question("10mbit+100ms", 4, "nets:build", Model(1000), 20.0), Path("own.toml")
    out.write_text(starter(chosen, question, out), encoding="utf-8")
    assert load_config(out) == load_config(chosen.settings)  # all else is at its default
    lines = out.read_text(encoding="utf-8").splitlines()
    assert all(len(line) <= 100 and line == line.rstrip() for line in lines[1:])
    (mark,) = (line for line in lines if line.endswith("<- chosen"))
    assert mark.split()[1] == name
    assert f"# {COMPRESSORS[name].summary}" in lines
    (page,) = re.findall(r"docs/\S+\.md", "".join(lines))  # the hosts are far apart
    assert (ROOT / page).is_file()


def test_no_file_is_replaced_unless_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("compressa.toml").write_text("# mine\n")
    said = refused(capsys, "init", *SMALL)
    assert said == "error: --out: compressa.toml is there already; --force overwrites it\n"
    typed(monkeypatch, "n")
    assert run("init", *SMALL) == 1
    assert text() == "# mine\n"
    typed(monkeypatch, "y")
    assert run("init", *SMALL) == 0
    assert text() != "# mine\n"


def test_in_a_terminal_what_is_missing_is_asked_for_until_it_is_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "100mbit", "one", "3", "1.5M", "careful", "0")
    asked = printed(capsys, "init")
    assert "Link of each host" in asked
    assert asked.count("Number of ranks") == 2
    assert "# Written by: compressa init --link 100mbit --ranks 3 --parameters 1500000" in text()
    assert load_config("compressa.toml").compressor.name == "int8"


def test_what_hides_behind_computing_is_left_dense() -> None:
    assert run("init", *SMALL, "--compute-ms", "9000") == 0
    assert load_config("compressa.toml").compressor.name == "none"
    assert "9000 ms of computing" in text()


def test_a_model_is_counted(tmp_path: Path) -> None:
    code = "from torch import nn\ndef build():\n    return nn.Linear(64, 64)\n"
    (tmp_path / "net_of_init.py").write_text(code)
    assert run("init", *SMALL[:4], "--model", "net_of_init:build") == 0
    assert "(4,160 parameters)" in text()
    assert "--model net_of_init:build" in text().splitlines()[0]


def test_a_measured_link_is_named_in_the_file(tmp_path: Path) -> None:
    write_link(tmp_path / "link.json", favouring("tree"))
    assert run("init", "--link", "link.json", *SMALL[2:]) == 0
    assert load_config("compressa.toml").exchange.link == "link.json"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (SMALL[2:], "--link is needed"),
        (SMALL[:2] + SMALL[4:], "--ranks is needed"),
        (SMALL[:4], "--parameters is needed"),
        (["--link", "fast", *SMALL[2:]], '"fast" is not a link'),
        (["--link", "gone.json", *SMALL[2:]], "there is no file 'gone.json'"),
        (["--link", "unshaped", *SMALL[2:]], "--link: give a rate"),
        ([*SMALL[:4], "--parameters", "many"], '--parameters: give a number such as "4.3M"'),
        ([*SMALL, "--model", "a:b"], "--parameters and --model: give one of them"),
        ([*SMALL, "--accuracy", "most"], '"most" is not one of careful, usual, bold'),
        ([*SMALL, "--out", "no/where.toml"], "--out: no/where.toml: cannot be written"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, "init", *options)
    assert not Path("compressa.toml").exists()
