"""What is nearly TOML is told what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_config_mistakes import refusal

SLIPS = r"""
compressor = int8
  line 1, column 14: is not valid TOML: put quotes around it: "int8"
compressor = { name = topk, density = 0.01 }
  column 23: is not valid TOML: put quotes around it: "topk"
[schedule];pace_bits_per_s = 100mbit
  line 2, column 22: is not valid TOML: put quotes around it: "100mbit"
rules = [;{ match.role = [; bias, "norm" ]
  line 3, column 2: is not valid TOML: put quotes around it: "bias"
exchange.link = /tmp/link.json # measured
  put quotes around it: "/tmp/link.json"
feedback.owner = True
  line 1, column 18: is not valid TOML: write true
feedback.owner = OFF
  is not valid TOML: write false
exchange.link = None
  is not valid TOML: TOML has no such value: leave the key out
compressor: int8
  line 1, column 11: is not valid TOML: this is YAML; in TOML write key = value
---;compressor:;  name: int8
  line 1, column 4: is not valid TOML: this is YAML
- name: int8
  is not valid TOML: this is YAML
{"compressor": {"name": "int8"}}
  line 1, column 1: is not valid TOML: this is JSON; in TOML write key = value
[rules
  line 1, column 7: is not valid TOML: Expected ']'
[first second]
  line 1, column 8: is not valid TOML: Expected ']'
compressor
  line 1, column 11: is not valid TOML: Expected '='
exchange.link = C:\link.json
  line 1, column 17: is not valid TOML: Invalid value
"""
SLIP_ROWS = [line.strip() for line in SLIPS.strip().splitlines()]


@pytest.mark.parametrize(("text", "message"), [*zip(SLIP_ROWS[::2], SLIP_ROWS[1::2], strict=True)])
def test_what_is_nearly_toml_is_told_what_to_write_instead(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "nearly.toml"
    file.write_text(text.replace(";", "\n") + "\n")
    assert message in refusal(file)
