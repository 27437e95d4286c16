"""The command line, called as a function."""

from __future__ import annotations

import pytest

from compressa import cli


def run(*arguments: object) -> int:
    """Run a command; return its exit status."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that ends well; return what it printed."""
    status, captured = run(*arguments), capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that ends with status 1; return what it said."""
    assert run(*arguments) == 1
    return capsys.readouterr().err
