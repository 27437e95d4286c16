"""The command line says OK, or every mistake, and ends with the right status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run

from compressa import cli
from compressa.compressors import COMPRESSORS
from compressa.config import Config, load_config
from compressa.errors import StateError


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "good.toml"
    file.write_text('rules = [{ match = { name = "*bias" }, compressor = "none" }]\n')
    return file


def test_check_says_ok(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "check", good) == 0
    assert capsys.readouterr().out == f"OK: {good}\n"


def test_check_lists_every_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('engin = 1\ncompressor = "topkk"\n')
    assert run("config", "check", file) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {file}: 2 mistakes\n  line 1: engin: ")
    assert "\n  line 2: compressor: " in shown.err


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a model of one layer of 64 x 64 and a bias is made."""
    text = "from torch import nn\ndef build():\n    return nn.Linear(64, 64)\nwrong = list\n"
    (tmp_path / "one_layer.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return "one_layer:build"


Check = Callable[..., tuple[list[list[str]], str]]


@pytest.fixture
def check(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Checks a configuration on the model; returns the words of what is printed, and warnings."""

    def checked(text: str, *options: object) -> tuple[list[list[str]], str]:
        (tmp_path / "c.toml").write_text(text)
        assert run("config", "check", tmp_path / "c.toml", "--model", model, *options) == 0
        shown = capsys.readouterr()
        return [line.split() for line in shown.out.splitlines()], shown.err

    return checked


def test_check_tries_the_rules_on_a_model(check: Check) -> None:
    rules = 'rules = [{ match = { name = "wieght" }, compressor = "none" }]\n'
    rows, warned = check(f'compressor = "int8"\n{rules}')
    assert "warning: rules[0] (name = 'wieght') has no effect" in warned
    assert "the nearest names are weight" in warned
    assert ["int8,", "error", "feedback", "1", "4,096"] in rows
    assert ["none", "1", "64"] in rows


def test_check_shows_the_settings_that_are_not_the_defaults(check: Check) -> None:
    rows, _ = check(
        'compressor = { name = "topk", density = 0.01, value_dtype = "float16" }\n'
        "dense_below = { elems = 0 }\n"
        'rules = [{ match = { role = "bias" }, compressor = { name = "int8", block = 32, '
        'mapping = "maxmin" } }]\n'
    )
    assert ["topk", "value_dtype=float16,", "error", "feedback", "1", "4,096"] in rows
    assert ["int8", "block=32", "mapping=maxmin,", "error", "feedback", "1", "64"] in rows


def test_check_shows_what_is_around_a_codec_from_the_inside_out(check: Check) -> None:
    rows, _ = check('compressor = "int8"\nexchange = { entropy_level = 1 }\n')
    assert ["int8,", "entropy,", "error", "feedback", "1", "4,096"] in rows


def test_check_shows_every_compressor_on_a_line(check: Check) -> None:
    for name in COMPRESSORS:
        (title, *rows, _), _ = check(f'compressor = "{name}"\ndense_below = {{ elems = 0 }}\n')
        assert title == ["compressor", "parameters", "elements"]
        assert all(row[0].rstrip(",") in COMPRESSORS for row in rows)
        assert sum(int(row[-1].replace(",", "")) for row in rows) == 64 * 64 + 64


def test_check_counts_the_bytes_of_the_model(check: Check) -> None:
    _, warned = check('compressor = { name = "topk", density = 0.2 }\n', "--ranks", 16)
    assert "warning: topk density=0.2, error feedback: on 16 ranks" in warned


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("one_layer", 'must be "module:callable"'),
        ("one_layer:absent", "could not make the model: AttributeError"),
        ("no_such_module_here:build", "could not make the model: ModuleNotFoundError"),
        ("one_layer:wrong", "returned list, not an nn.Module"),
    ],
)
@pytest.mark.usefixtures("model")
def test_check_refuses_what_is_no_model(
    good: Path, capsys: pytest.CaptureFixture[str], factory: str, message: str
) -> None:
    before = list(sys.path)
    assert run("config", "check", good, "--model", factory) == 1
    assert message in capsys.readouterr().err
    assert sys.path == before


def test_show_prints_toml_that_loads_back(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("config", "show", good) == 0
    (tmp_path / "shown.toml").write_text(capsys.readouterr().out)
    assert load_config(tmp_path / "shown.toml") == load_config(good)


def test_show_prints_json_with_all_settings(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "show", good, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == list(Config.model_fields)


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Config"


@pytest.mark.parametrize(
    "arguments",
    [[], ["config"], ["config", "check"], ["config", "show"], ["config", "schema"], ["doctor"]],
    ids=" ".join,
)
def test_every_help_has_an_example(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--help") == 0
    example = " ".join(["Example: compressa", *arguments])
    assert example in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_subcommand_can_be_loaded_and_has_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    launcher = "torchrun --nproc-per-node 2 -m " if name == "link" else ""
    assert f"Example: {launcher}compressa {name}" in said


def test_the_general_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in cli.COMMANDS)


@pytest.mark.parametrize("arguments", [["bogus"], ["config", "check"], ["doctor", "--bogus"]])
def test_wrong_usage_ends_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert "Usage: compressa" in capsys.readouterr().err


def raising(error: BaseException) -> object:
    def fail(ranks: int | None) -> None:
        raise error

    return fail


def test_an_error_of_compressa_s_own_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compressa.cli.doctor.examine", raising(StateError("do this")))
    assert run("doctor") == 1
    assert capsys.readouterr().err == "error: do this\n"


def test_ctrl_c_is_quiet_and_ends_with_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compressa.cli.doctor.examine", raising(KeyboardInterrupt()))
    assert run("doctor") == 130
    assert capsys.readouterr().err.strip() == ""


def test_an_unexpected_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compressa.cli.doctor.examine", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


def test_help_imports_no_subcommand() -> None:
    program = (
        "import sys\n"
        "from compressa.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "names = ['config', 'doctor', 'testbed']\n"
        "loaded = {'numba', *(f'compressa.cli.{n}' for n in names)} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_check_warns_of_what_takes_more_bytes_than_dense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        'compressor = "int4"\nfeedback = { kind = "ef21" }\n'
        'rules = [{ match = { role = "bias" }, compressor = "topk", feedback = "auto" },\n'
        '  { match = { role = "norm" }, compressor = "none" }]\n'
    )
    warned = "warning: int4, ef21: on 16 ranks the busiest one has 1.06 times the bytes of a dense"
    for ranks, due in ((8, False), (16, True)):
        assert run("config", "check", file, "--ranks", ranks) == 0
        shown = capsys.readouterr()
        assert shown.out == f"OK: {file}\n"
        assert shown.err.startswith(warned) is due
        assert shown.err.count("warning: ") == due


def test_check_warns_of_files_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, link = tmp_path / "c.toml", tmp_path / "link.json"
    file.write_text(f"exchange = {{ link = '{link}', authenticate = true, secret_file = 'key' }}\n")
    assert run("config", "check", file) == 0
    warned = capsys.readouterr().err.splitlines()
    assert warned[0].startswith(f"warning: exchange.link: there is no file {link} here")
    assert warned[1].startswith("warning: exchange.secret_file: there is no file key here")
    link.write_text("{}")
    assert run("config", "check", file) == 0
    assert "exchange.link" not in capsys.readouterr().err
