"""Every kind of mistake is refused in words that say where it is and what would be right."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from compressa.config import load_config
from compressa.errors import ConfigError


def refusal(source: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    return str(caught.value)


def matching(match: dict[str, Any]) -> dict[str, Any]:
    return {"rules": [{"match": match, "compressor": "int8"}]}


# A configuration, its lines parted by semicolons; and below it what is said of it.
UNKNOWN_KEYS = r"""
engin = {}
  engin: is not a setting; did you mean "engine"?
exchange.credit = 1
  exchange.credit: is not a setting; did you mean
compressor = {name = "topk", densty = 0.1}
  ; did you mean "density"?
compressor = {name = "topk", block = 8}
  known here are name, density, value_dtype
compressor = {name = "topk", none = 1}
  compressor.none: is not a setting
rules = [{match.name = "*", compressor = "int8", feedbak = "none"}]
  rules[0].feedbak: is not a setting; did you mean "feedback"?
rules = [{match.nmae = "*", compressor = "int8"}]
  rules[0].match.nmae: is not a setting; did you mean "name"?
warmup.compressor = {name = "int8", blok = 8}
  warmup.compressor.blok: is not
error_feedback = true
  error_feedback: is not a setting; write kind = "error" in [feedback]; if nothing is written
compressor = {name = "topk", error_feedback = true}
  compressor.error_feedback: is not a setting; write kind = "error" in [feedback]
"""
WRONG_TYPES = r"""
engine.threads = "2"
  engine.threads: must be a whole number, not "2"
engine.threads = true
  engine.threads: must be a whole number, not true
engine.threads = 1.5
  engine.threads: must be a whole number, not 1.5
feedback.owner = 1
  feedback.owner: must be true or false, not 1
feedback = "none"
  feedback: must be a table, not "none"
rules = {}
  rules: must be a list, not a table; write [[rules]] above each rule
rules = [3]
  rules[0]: must be a table, not 3
compressor = 3
  compressor: must be a table such as { name = "int8" }, not 3
compressor = {name = "topk", density = "1%"}
  compressor.density: must be a number
trace.path = 4
  trace.path: must be a string, not 4
trace.steps = [1, 2]
  trace.steps: is set, but not trace.path
trace = {path = "t.json", steps = [3, 2]}
  trace.steps: must be the first step and the last, not [3, 2]
rules = [{match.name = 3, compressor = "int8"}]
  rules[0].match.name: must be a string, not 3
rules = [{match.name = [], compressor = "int8"}]
  rules[0].match.name: must be a list of at least one, not []
exchange.deadline_s = "30min"
  exchange.deadline_s: must be a number of seconds, not "30min"
rules = [{match.shape = "x", compressor = "int8"}]
  rules[0].match.shape: must be a list, not "x"
rules = [{match.shape = ["*", -1], compressor = "int8"}]
  rules[0].match.shape[1]: must be a number of elements
"""
OUT_OF_RANGE = r"""
compressor = {name = "topk", density = 0}
  greater than 0 and at most 1, not 0
compressor = {name = "topk", density = 1.5}
  greater than 0 and at most 1, not 1.5
compressor = {name = "randomk", density = nan}
  compressor.density: must be
compressor = {name = "onebit", block = 12}
  compressor.block: must be at least 8
compressor = {name = "powersgd", approx_rank = 0}
  approx_rank: must be at least 1 and at most 65536
exchange.deadline_s = 0
  deadline_s: must be at least 0.001 and at most 604800
exchange.deadline_s = 1e10
  at most 604800 seconds, not 10000000000.0
exchange.deadline_s = inf
  exchange.deadline_s: must be a finite number
exchange.silence_s = 3e6
  at least 0.01 and at most 604800 seconds, not 3000000.0
exchange.chunk_bytes = 0
  exchange.chunk_bytes: must be at least 1 and at most
exchange.chunk_bytes = 1099511627776
  at least 1 and at most 1073741824 bytes, not 109951162
exchange.chunk_bytes = "4 apples"
  such as 262144 or "256KiB", not "4 apples"
exchange.chunk_bytes = "4MiB/s"
  such as 262144 or "256KiB", not "4MiB/s"
exchange.chunk_bytes = "0.3B"
  must be a whole number of bytes, not "0.3B"
schedule.pace_bits_per_s = 100
  must be at least 1000 and at most 1000000000000000 bits per second, not 100
schedule.pace_bits_per_s = "100 apples"
  must be a rate in bits per second such as 1e8 or "100mbit", not "100 apples"
engine.seed = 4294967296
  engine.seed: must be at least 0 and less than 4294967296
engine.seed = -1
  engine.seed: must be at least 0 and less than 4294967296
engine.threads = 0
  engine.threads: must be at least 1 and at most 1024
warmup.densities = [2]
  [0]: must be greater than 0 and at most 1, not 2
warmup.steps = -1
  warmup.steps: must be at least 0 and at most 9007
rules = [{match = {min_elems = 5, max_elems = 4}, compressor = "int8"}]
  more than max_elems = 4; nothing can match
rules = [{match = {}, compressor = "int8"}]
  rules[0].match: is empty, and would match every parameter
"""
UNKNOWN_NAMES = r"""
compressor = "topkk"
  ; did you mean "topk"?
compressor.name = "zip"
  "zip" is not a compressor; must be one of "none",
compressor = {}
  compressor: has no name; give name = one of "none",
compressor.name = 3
  compressor:
exchange.transport = "gloo-group"
  transport: "gloo-group" is not allowed; must be one of "auto", "tcp", "mpi", "nccl"
rules = [{match.role = "nrom", compressor = "int8"}]
  match.role: "nrom" is not allowed; must be one of "weight",
rules = [{match.role = ["bias", "b"], compressor = "int8"}]
  match.role[1]: "b" is not allowed; must be one of
schedule.policy = "lifo"
  "lifo" is not allowed; must be one of "
exchange.kind = "allreduce"
  did you mean "all_reduce"?
exchange.transport = "udp"
  "udp" is not allowed; must be one of "auto",
engine.device = "gpu"
  "gpu" is not allowed; must be one of "auto", "cpu", "cuda"
rules = [{compressor = "int8"}]
  rules[0].match: is missing
rules = [{match.name = "*"}]
  rules[0].compressor: is missing
"""
IMPOSSIBLE_COMBINATIONS = r"""
compressor = {name = "randomk", unbiased = true}; feedback.kind = "error"
  feedback.kind: is "error", but randomk is unbiased
rules = [{match.name = "*", compressor = {name = "randomk", unbiased = true}, feedback = "error"}]
  rules[0].feedback: is "error", but randomk is unbiased
compressor = "powersgd"; feedback.kind = "none"
  powersgd has its error feedback built in
compressor = "powersgd"; feedback.kind = "ef21"
  is "ef21", but powersgd has its error feedback built in
compressor = "terngrad"; feedback.kind = "scaled"
  is "scaled", but terngrad is no contraction as configured
compressor = "signsgd"; feedback.kind = "error"
  signsgd keeps nothing from step to step
compressor = {name = "thc", feedback = false}; feedback.kind = "error"
  thc keeps nothing from step to step
compressor = "topk"; exchange.kind = "all_reduce"; feedback.kind = "ef21"
  for which every payload must reach every rank
compressor = "int8"; exchange.kind = "per_hop"; feedback.kind = "ef21"
  for which every payload must reach every rank
compressor = "int8"; exchange.kind = "scatter_reduce"; momentum.factor = 0.9
  momentum.factor: is 0.9, but in a scatter-reduce every rank contributes its own shard
compressor = "int8"; exchange.kind = "per_hop"; momentum.factor = 0.9
  momentum.factor: is 0.9, but where sums are encoded at every hop no rank knows
compressor = "topk"; warmup = {steps = 1, densities = [0.2, 0.1]}
  warmup.densities: names 2 densities for 1 steps
compressor = "int8"; warmup = {steps = 4, densities = [0.2, 0.1]}
  warmup.densities: is given, but int8 has no density
compressor = "topk"; warmup = {steps = 4, densities = [0.2], compressor = "bf16"}
  is given beside warmup.compressor = bf16
compressor = "topk"; exchange.kind = "scatter_reduce"
  the statistics of topk span a whole parameter
rules = [{match.name = "*", compressor = "topk"}]; exchange.kind = "scatter_reduce"
  exchange.kind: is
compressor = "int8"; exchange.kind = "all_reduce"
  payloads of int8 can not be summed
compressor = "powersgd"; exchange.kind = "all_gather"
  powersgd exchanges in rounds of its own
compressor = "topk"; exchange.kind = "per_hop"
  exchange.kind: is "per_hop", but the statistics of topk span a whole parameter
compressor = "powersgd"; exchange.kind = "per_hop"
  powersgd exchanges in rounds of its own
compressor = "int8"; exchange = {kind = "per_hop", algorithm = "backend"}
  exchange.algorithm: is "backend", but no backend decodes and encodes at every hop
compressor = "int8"; exchange = {kind = "per_hop", inside = "bf16"}
  exchange.inside: is "bf16", but only with exchange.kind = "per_hop" and
compressor = "int8"; exchange = {algorithm = "hierarchical", inside = "fp16"}
  exchange.inside: is "fp16", but only with
compressor = "bf16"; exchange.kind = "all_reduce"; feedback.kind = "error"
  the sum of bf16 by exchange.kind = "all_reduce" rounds in bfloat16
exchange = {credit_bytes = "64KiB", chunk_bytes = "256KiB"}
  credit_bytes: is 65536, less than one chunk; must be at least chunk_bytes = 262144
exchange = {connections = 4, transport = "mpi"}
  connections: is 4, but the transport mpi makes its own
exchange.silence_s = 4
  silence_s: is 4; must be more than two heartbeats, 4 s
exchange.secret_file = "s"
  exchange.secret_file: is set, but nothing is authenticated
exchange.authenticate = true
  exchange.authenticate: is set, but not exchange.secret_file
exchange = {authenticate = true, secret_file = "s", transport = "mpi"}
  exchange.authenticate: is set, but exchange.transport = "mpi" sends what has no
exchange = {authenticate = true, secret_file = "s", transport = "nccl"}
  exchange.authenticate: is set, but exchange.transport = "nccl" sends what has no
exchange = {entropy_level = 1, transport = "nccl"}
  exchange.entropy_level: is 1, but exchange.transport = "nccl" moves payloads from GPU to GPU
exchange = {authenticate = true, secret_file = "s", algorithm = "backend"}
  exchange.authenticate: is set, but exchange.algorithm = "backend" sends what has no
exchange = {authenticate = true, secret_file = "s", broadcast = "multicast"}
  exchange.authenticate: is set, but exchange.broadcast = "multicast" sends what has no
"""
TABLES = UNKNOWN_KEYS, WRONG_TYPES, OUT_OF_RANGE, UNKNOWN_NAMES, IMPOSSIBLE_COMBINATIONS
ROWS = [line.strip() for table in TABLES for line in table.strip().splitlines()]


@pytest.mark.parametrize(("text", "message"), [*zip(ROWS[::2], ROWS[1::2], strict=True)])
def test_a_mistake_is_refused_with_its_place_and_what_would_be_right(
    text: str, message: str
) -> None:
    assert message in refusal(tomllib.loads(text.replace("; ", "\n")))


MANY = """\
feedback = { kind = "eror" }
engin = 1

[compressor]
name = "topk"
density = 1.5   # too much

[exchange]
kind = "scatter_reduce"
chunk_bytes = [
  1,
]

[[rules]]
match.role = ["bias",
              "nrom"]
compressor = { name = "int8" }

[[rules]]
compressor = { name = "int8",  blokc = 3 }
"""


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "many.toml"
    file.write_text(MANY)
    first, *rows = refusal(file).splitlines()
    assert first == f"{file}: 8 mistakes"
    starts = [
        "line 1: feedback.kind: ",
        "line 2: engin: ",
        "line 6: compressor.density: ",
        'line 9: exchange.kind: is "scatter_reduce", but the statistics of topk',
        "line 10: exchange.chunk_bytes: ",
        "line 16: rules[0].match.role[1]: ",
        "line 19: rules[1].match: is missing",
        "line 20: rules[1].compressor.blokc: ",
    ]
    assert [row.strip()[: len(start)] for row, start in zip(rows, starts, strict=True)] == starts


def test_a_combination_that_rests_on_a_mistake_is_not_reported() -> None:
    text = refusal({"exchange": {"credit_bytes": "x", "chunk_bytes": "2MiB"}})
    assert "exchange.credit_bytes: must be a size" in text
    assert "less than one chunk" not in text


def test_a_single_mistake_takes_a_single_line(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('\n[compressor]\nname = "topkk"\n')
    text = refusal(str(file))
    assert text.startswith(f'{file}: line 2: compressor: "topkk" is not a compressor')
    assert "\n" not in text


def test_a_wrong_item_of_a_list_is_one_mistake() -> None:
    assert refusal(matching({"role": "biases"})).endswith(
        'configuration: rules[0].match.role: "biases" is not allowed; must be one of "weight", '
        '"bias", "norm", "embedding", "output"; did you mean "bias"?'
    )


# A file, its lines parted by semicolons; and below it what is said of it.


def test_text_that_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[compressor]\nname = "topk\n')
    assert f"{file}: line 2, column " in refusal(file)
    file.write_text("[compressor]\nname = ")
    assert "is not valid TOML" in refusal(file)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(tmp_path / "absent.toml")
    assert "cannot be read" in refusal(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in refusal(tmp_path / "bytes.toml")


def test_a_source_of_another_type_is_refused() -> None:
    assert "a path, a mapping or a Config, not list" in refusal([])
    assert "keys should be strings" in refusal({3: 4})
