"""Every compressor survives a TOML file: written, read and assigned, it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from _conforming import section
from compressor_cases import ALL

from compressa.codecs.base import codec_of
from compressa.compressor import Compressor
from compressa.config import assign, config_toml, load_config
from compressa.parameters import ParameterInfo

WEIGHT = ParameterInfo(0, "weight", (64, 64))


@pytest.mark.parametrize("compressor", ALL.values(), ids=ALL)
def test_a_compressor_survives_a_toml_file(compressor: Compressor, tmp_path: Path) -> None:
    config = load_config({"compressor": section(compressor)})
    file = tmp_path / "compressa.toml"
    file.write_text(config_toml(config))
    again = load_config(file)
    assert again == config
    assert again.compressor.build() == compressor
    assigned = assign(again, [WEIGHT])["weight"].for_parameter(WEIGHT)
    assert (codec_of(assigned) or assigned) == compressor.for_parameter(WEIGHT)
