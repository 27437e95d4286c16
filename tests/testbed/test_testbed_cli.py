"""`compressa testbed`: up, status, exec and down, on whichever kind needs no root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _between_hosts import MARKS
from typer.testing import CliRunner, Result

from compressa.cli import testbed as testbed_cli
from compressa.errors import ConfigError, StateError
from compressa.testbed import open_testbed
from compressa.testbed._records import directory, read_records

KINDS = ["loopback", pytest.param("netns", marks=MARKS)]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESSA_TESTBED_DIR", str(tmp_path))


def run(*words: str) -> Result:
    result = CliRunner().invoke(testbed_cli.testbed_app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_a_testbed_stays_up_until_it_is_taken_down(kind: str) -> None:
    said = run("up", "--hosts", "2", "--link", "20mbit", "--name", "lab", "--kind", kind)
    assert said.exit_code == 0
    assert f"Testbed lab is up: 2 hosts ({kind}), link 20mbit." in said.stdout
    assert ("no shaped network" in said.stderr) == (kind == "loopback")
    try:
        assert f"lab: {kind}, link 20mbit" in run("status").stdout
        assert run("exec", "1", "--", "sh", "-c", "exit 7").exit_code == 7
        assert run("exec", "1", "--", "sh", "-c", "kill -KILL $$").exit_code == 137
        host = read_records()[0].hosts[0][0]
        assert run("exec", "--name", "lab", host, "--", "true").exit_code == 0
        with pytest.raises(ConfigError, match="up already"):
            run("up", "--name", "lab", "--kind", "loopback")
        with pytest.raises(ConfigError, match="hosts 0 to 1"):
            run("exec", "2", "--", "true")
        with pytest.raises(ConfigError, match='no host "h0"'):
            run("exec", "h0", "--", "true")
        with pytest.raises(StateError, match="up are: lab"):
            run("exec", "--name", "other", "0", "--", "true")
    finally:
        assert "Testbed lab is down." in run("down", "--name", "lab").stdout
    assert "No testbed is up." in run("status").stdout
    assert os.listdir(directory()) == ["lock"]


def test_several_testbeds_are_told_apart() -> None:
    for name in ("one", "two"):
        run("up", "--hosts", "2", "--name", name, "--kind", "loopback", "--no-check")
    try:
        with pytest.raises(StateError, match=r"one, two.*--name"):
            run("exec", "0", "--", "true")
    finally:
        said = run("down", "--all").stdout
    assert said.split("\n")[:2] == ["Testbed one is down.", "Testbed two is down."]
    assert "No testbed is up." in run("down").stdout


def test_what_goes_with_its_program_is_not_taken_down() -> None:
    with open_testbed(2, "unshaped", "loopback", self_check=False) as bed:
        said = run("down").stdout
        assert said == f"No testbed is up that stays; {bed.name} goes with pid {os.getpid()}.\n"


def test_wrong_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="is not a link"):
        run("up", "--link", "fast")
    with pytest.raises(ConfigError, match="no kind of testbed"):
        run("up", "--kind", "vpn")
    with pytest.raises(ConfigError, match="is not a name"):
        run("up", "--name", "a/b")
    with pytest.raises(StateError, match="testbed up"):
        run("exec", "0", "--", "true")


@pytest.mark.parametrize("command", ["up", "down", "exec", "status"])
def test_every_help_has_an_example(command: str) -> None:
    assert f"Example: compressa testbed {command}" in run(command, "--help").stdout
