"""What the README says works: commands, examples, configuration, links and generated tables."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import readme_table
import typer
from lab.records import append
from test_codecs_golden import X
from test_experiments_report import whole

from compressa import cli, load_config, optim
from compressa.compressors import COMPRESSORS, Entry, Family
from compressa.config.choices import choice_model
from compressa.config.strategies import STRATEGIES as DESCRIBED
from compressa.facts import facts
from compressa.page import page
from compressa.testing.codec_checks import encoded
from harness.tables import with_block

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENGINE = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
STRATEGIES = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
OPTIMIZERS = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)
    assert found, f"the README has no {language} block"
    return found


def block_with(language: str, text: str) -> str:
    (found,) = (block for block in blocks(language) if text in block)
    return found


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


def spoken_of() -> set[str]:
    """Commands in running text: `make check`, `compressa explain`."""
    pages = (README, ARCHITECTURE, ENGINE, STRATEGIES, OPTIMIZERS)
    return set(re.findall(r"`((?:make|compressa|python) [^`]+)`", "".join(pages)))


def all_commands() -> list[list[str]]:
    return [*commands(), *(shlex.split(text) for text in sorted(spoken_of()))]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    named = {command[1] for command in all_commands() if command[0] == "make"}
    assert {"demo", "test", "install", "check"} <= named
    assert named <= targets


def test_no_command_is_of_an_unknown_kind() -> None:
    assert {command[0] for command in all_commands()} == {"make", "compressa", "python", "torchrun"}
    assert shutil.which("torchrun", path=str(Path(sys.executable).parent))


def cli_commands() -> list[list[str]]:
    return [command[1:] for command in all_commands() if command[0] == "compressa"]


def own_part(command: list[str]) -> list[str]:
    """What is compressa's: not the command that `testbed exec` is given."""
    return command[: command.index("--")] if "--" in command else command


@pytest.mark.parametrize("command", [pytest.param(c, id=" ".join(c)) for c in cli_commands()])
def test_commands_and_their_options_exist(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    mine = own_part(command)
    words = [word for word in mine if re.fullmatch("[a-z]+", word)]
    words = words[:2] if words[0] in ("config", "testbed", "trace") else words[:1]
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert f"compressa {' '.join(words)}" in shown
    for option in (word for word in mine if word.startswith("--")):
        assert option in shown


def test_every_subcommand_is_in_the_readme() -> None:
    assert set(cli.COMMANDS) == {command[0] for command in cli_commands()}


def test_scripts_and_links_exist() -> None:
    started = [command[1:] for command in all_commands() if command[0] == "python"]
    assert all(importlib.util.find_spec(words[1]) for words in started if words[0] == "-m")
    scripts = [words[0] for words in started if words[0] != "-m"]
    links = re.findall(r"\]\(([^)#]+)\)", README)
    for place in [*scripts, *(link for link in links if not link.startswith("http"))]:
        assert (ROOT / place).exists(), place


def test_configuration_in_the_readme_is_valid(tmp_path: Path) -> None:
    for text in blocks("toml"):
        assert tomllib.loads(text)
        file = tmp_path / "compressa.toml"
        file.write_text(text, encoding="utf-8")
        assert load_config(file).compressor.name == "int8"


def execute(code: str, names: dict[str, Any]) -> None:
    """Run code as a file of its own would, without this file's `from __future__`."""
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)


# Put before the example's last lines: what the README adds to it in later blocks.
LATER = """
assert {name: row.payload_bytes > 0 for name, row in stats.compressors.items()} == {
    "bf16": True, "int8": True, "none": True, "topk": True,
}
before = {key: vector.clone() for key, vector in handle.state_dict().items()}
old_lr, new_lr = 0.1, 0.4
RESIDUALS
scaled = [key for key, vector in handle.state_dict().items() if "/residual/" in key]
for key in scaled:
    assert handle.state_dict()[key].equal(before[key] / 4)
assert any(before[key].any() for key in scaled)
first, model = handle, DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.Linear(256, 10)))
SCALER
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler.scale(model(torch.randn(32, 64)).square().mean()).backward()
scaler.step(optimizer)
scaler.update()
assert handle.stats().steps == 1
first.close()
"""


def train_script() -> str:
    example = block_with("python", "init_process_group")
    later = LATER.replace("RESIDUALS", block_with("python", "old_lr"))
    later = later.replace("SCALER", block_with("python", "GradScaler"))
    head, end, tail = example.partition("handle.close()\n")
    assert end
    return head + later + end + tail


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ranks_of(
    script: str, size: int, folder: Path, environments: Sequence[Mapping[str, str]] = ()
) -> list[subprocess.CompletedProcess[str]]:
    """Run a script as torchrun does, on some ranks; all of them must come to its end.

    With environments of their own, ranks have what these say, and nothing of torchrun's.
    """
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        own = common | {"RANK": str(rank), "WORLD_SIZE": str(size)}
        return subprocess.run(
            [sys.executable, script],
            cwd=folder,
            env=os.environ | (environments[rank] if environments else own),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    with ThreadPoolExecutor(size) as pool:
        ended = list(pool.map(run, range(size)))
    for done in ended:
        assert done.returncode == 0, done.stderr
    return ended


@pytest.mark.ranks
def test_an_engine_averages_between_two_ranks_as_its_page_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", ENGINE, re.M | re.S)
    (tmp_path / "average.py").write_text(example, encoding="utf-8")
    outputs = [done.stdout for done in ranks_of("average.py", 2, tmp_path)]
    assert outputs[0] == outputs[1]
    assert re.fullmatch(r"20 steps, 3\.\d times smaller, the mean is -?\d\.\d{4}\n", outputs[0])
    assert (tmp_path / "ckpt" / "momenta" / "manifest.json").exists()


@pytest.mark.ranks
def test_ranks_meet_every_so_many_steps_as_the_page_of_strategies_says(tmp_path: Path) -> None:
    for language, file in (("python", "train.py"), ("toml", "compressa.toml")):
        example = re.findall(rf"^```{language}\n(.*?)^```$", STRATEGIES, re.M | re.S)[0]
        (tmp_path / file).write_text(example, encoding="utf-8")
    for done in ranks_of("train.py", 2, tmp_path):
        assert re.fullmatch(r"3 meetings, 6\.\d times smaller, the loss is 0\.\d+\n", done.stdout)
    assert (tmp_path / "ckpt" / "strategy" / "manifest.json").exists()


@pytest.mark.ranks
@pytest.mark.parametrize("told", ["all", "by the launcher"])
def test_a_cluster_specification_starts_roles(told: str, tmp_path: Path) -> None:
    example = re.findall(r"^```python\n(.*?)^```$", STRATEGIES, re.M | re.S)[1]
    (tmp_path / "train.py").write_text(example, encoding="utf-8")
    port = free_port()
    cluster = {"worker": [f"127.0.0.1:{port}", "127.0.0.1:1"], "ps": ["127.0.0.1:2"]}
    tasks = [("worker", 0), ("worker", 1), ("ps", 0)]
    environments = [
        {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}),
        }
        if told == "all"
        else {"TF_CONFIG": json.dumps({"cluster": cluster}), "OMPI_COMM_WORLD_RANK": str(rank)}
        for rank, (kind, index) in enumerate(tasks)
    ]
    outputs = [done.stdout for done in ranks_of("train.py", 3, tmp_path, environments)]
    assert [bool(re.fullmatch(r"worker \d: the loss is \d\.\d+\n", o)) for o in outputs] == [
        1,
        1,
        0,
    ]
    assert outputs[2] == ""


def test_the_figures_of_strategies_are_those_of_their_file() -> None:
    file = ROOT / "experiments" / "results" / "strategies" / "cells.jsonl"
    cells = [json.loads(line) for line in file.read_text().splitlines()]
    digits = [cell for cell in cells if cell["task"] == "digits"]
    near = {cell["compressor"]: cell for cell in digits if cell["link"] is None}
    losses = {c["compressor"]: c["metrics"]["loss"] for c in cells if c["task"] == "gpt-demo"}
    assert len(losses) == 4
    assert all(f"{loss:.2f}" in STRATEGIES for loss in losses.values())
    far = {cell["compressor"]: cell for cell in cells if cell["link"] == "10mbit"}
    assert len(near) == 10
    for name, cell in near.items():
        sent = cell["sent_bytes"] / 1e6
        share = cell["sent_bytes"] / near["ddp-float32"]["sent_bytes"]
        seconds = f"{far[name]['elapsed_s']:.1f}" if name in far else "-"
        row = f"| `{name}` | {100 * cell['metrics']['accuracy']:.2f} % | {sent:.1f} | {share:.4f} |"
        assert f"{row} {seconds} |" in STRATEGIES


@pytest.mark.parametrize("plan", ["slow_host", "far"])
def test_the_times_to_quality_are_those_of_their_file(plan: str) -> None:
    file = ROOT / "experiments" / "results" / plan / "cells.jsonl"
    cells = [json.loads(line) for line in file.read_text().splitlines()]
    for cell in (cell for cell in cells if cell["link"] is not None):
        right, sent = 100 * cell["metrics"]["accuracy"], cell["sent_bytes"] / 1e6
        reached = [p["elapsed_s"] for p in cell["curve"] if p["value"] >= 0.975]
        seconds = f"{reached[0]:.2f}" if reached else "-"
        row = f"| `{cell['compressor']}` | {right:.2f} % | {sent:.1f} | {seconds} |"
        assert row in STRATEGIES, row


def test_the_losses_of_optimizers_are_those_of_their_file() -> None:
    file = ROOT / "experiments" / "results" / "optim" / "cells.jsonl"
    cells = [json.loads(line) for line in file.read_text().splitlines()]
    losses: dict[str, list[float]] = {}
    for cell in cells:
        losses.setdefault(cell["compressor"], []).append(cell["metrics"]["loss"])
    sent = {cell["compressor"]: cell["sent_bytes"] for cell in cells}
    best = {name: found for name, found in losses.items() if len(found) == 3}
    base = fmean(best["adamw-1e-3"])
    for name, found in best.items():
        change, share = fmean(found) / base - 1, sent[name] / sent["adamw-1e-3"]
        row = f"| `{name}` | {fmean(found):.3f} | {change:+.1%} | 1 / {1 / share:.1f} |"
        assert row in OPTIMIZERS, row
    for name, found in losses.items():
        if len(found) == 1:
            assert f"`{name}` {found[0]:.3f}" in re.sub(r"\s+", " ", OPTIMIZERS), name


def test_the_page_of_strategies_names_all_of_them() -> None:
    table = STRATEGIES.split("## What there is")[1].split("## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.M) == [*DESCRIBED]


@pytest.mark.ranks
def test_momenta_are_exchanged_as_the_page_of_optimizers_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", OPTIMIZERS, re.M | re.S)
    (tmp_path / "train.py").write_text(example, encoding="utf-8")
    for done in ranks_of("train.py", 2, tmp_path):
        assert re.fullmatch(r"100 steps, 4\.\d times smaller, the loss is 0\.\d+\n", done.stdout)
    assert (tmp_path / "ckpt" / "optimizer" / "manifest.json").exists()


def test_the_page_of_optimizers_names_all_of_them() -> None:
    table = OPTIMIZERS.split("## What there is")[1].split("## ")[0]
    named = set(re.findall(r"^\| `(\w+)`", table, re.M))
    assert named == set(optim.__all__) - {"CompressedOptimizer"}


@pytest.mark.ranks
def test_the_example_trains_saves_and_loads(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(train_script(), encoding="utf-8")
    (tmp_path / "compressa.toml").write_text(blocks("toml")[0], encoding="utf-8")
    (done,) = ranks_of("train.py", 1, tmp_path)
    assert re.fullmatch(r"\d+\.\d times smaller; backward waited \d+\.\d\d s\n", done.stdout)
    files = sorted(file.name for file in (tmp_path / "ckpt" / "compressa").iterdir())
    assert files[0] == "manifest.json"
    assert re.fullmatch(r"rank-00000-[0-9a-f]{16}\.safetensors", files[1])
    assert len(files) == 2


@pytest.fixture(scope="module")
def added() -> dict[str, Any]:
    """The worked example of a new compressor, as a module's names."""
    names: dict[str, Any] = {"__name__": "blocktop1"}
    execute(block_with("python", "class BlockTop1"), names)
    return names


def test_the_added_compressor_conforms(added: dict[str, Any]) -> None:
    checks = block_with("python", "check_compressor(")
    # Fewer ranks than by default, for time; all exchanges.
    assert "codec=BlockTop1())" in checks
    faster = checks.replace("codec=BlockTop1())", "codec=BlockTop1()), most_ranks=2", 1)
    execute(faster, dict(added))


def test_the_added_compressor_would_be_refused_with_a_fault(added: dict[str, Any]) -> None:
    class Careless(added["BlockTop1"]):
        def check_content(self, payload: Any, elems: int) -> None:
            """Let every payload pass."""

    names = dict(added) | {"BlockTop1": Careless}
    with pytest.raises((AssertionError, IndexError)):
        execute(block_with("python", "check_compressor("), names)


def test_the_added_compressor_can_be_configured_by_its_row(
    added: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = eval(block_with("python", "Entry("), dict(added) | {"Entry": Entry, "Family": Family})
    monkeypatch.setitem(COMPRESSORS, row.compressor.name, row)
    chosen = choice_model(row.compressor.name, row).model_validate({"name": "blocktop1"})
    assert chosen.build() == added["BlockTop1"]()
    text = page(row, facts(row))
    assert "**Wire format:**" in text
    assert "**Bias:**" in text


def test_the_added_compressor_has_the_bytes_that_are_said(added: dict[str, Any]) -> None:
    golden: dict[Any, str] = {}
    execute(block_with("python", "GOLDEN["), dict(added) | {"GOLDEN": golden})
    ((codec, text),) = golden.items()
    assert bytes(encoded(codec, X).tolist()).hex() == text


def test_table_of_compressors_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "compressor_table.py"))
    assert script["with_compressors"](README, script["compressors_block"]()) == README, (
        "run python docs/compressor_table.py"
    )


def test_results_are_those_of_the_committed_measurement() -> None:
    assert with_block(README, readme_table.BLOCK, readme_table.results_block()) == README, (
        "run python experiments/readme_table.py"
    )


def test_without_a_measurement_the_results_say_so(tmp_path: Path) -> None:
    assert "No measurement is committed yet" in readme_table.results_block(tmp_path)


def test_results_quote_numbers_machine_versions_and_date(tmp_path: Path) -> None:
    for record in whole():
        append(tmp_path, record)
    block = readme_table.results_block(tmp_path)
    first = whole()[0]
    for fact in (first.machine, first.date[:10], *first.versions.values()):
        assert fact in block
    assert "| ddp-float32 |" in block
    assert re.search(r"\| \d+\.\d\d of \d+\.\d\d \|", block)
    again = with_block(with_block(README, readme_table.BLOCK, block), readme_table.BLOCK, block)
    assert block in again
    assert again.count("<!-- results:begin -->") == 1


def test_an_outdated_readme_fails_the_check_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "README.md"
    copy.write_text(with_block(README, readme_table.BLOCK, "typed by hand"), encoding="utf-8")
    monkeypatch.setattr(readme_table, "README", copy)
    with pytest.raises(typer.Exit):
        readme_table.main(readme_table.MEASUREMENT, check=True)
    readme_table.main(readme_table.MEASUREMENT)
    readme_table.main(readme_table.MEASUREMENT, check=True)
    assert copy.read_text(encoding="utf-8") == README
