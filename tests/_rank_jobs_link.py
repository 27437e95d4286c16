"""What ranks do in tests of measured links."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import pytest
import torch.distributed as dist
from _rank_jobs import train

from compressa import cli
from compressa.link import fit, measure


def train_with_link(
    *, config: Mapping[str, Any], first: str | None, others: str | None = None, **how: Any
) -> dict[str, Any]:
    """Train; only rank 0 names a link's file, and the others another one, or none."""
    own = first if dist.get_rank() == 0 else others
    return train(config={**config, "exchange": {**config["exchange"], "link": own}}, **how)


def fit_link(*, out: str) -> str:
    """Run the command, at few sizes; return what it prints."""
    printed = io.StringIO()
    sizes, checked = fit.SIZES_BYTES, measure.CHECKED_BYTES
    fit.SIZES_BYTES, measure.CHECKED_BYTES = (1 << 10, 64 << 10), (16 << 10,)
    try:
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as end:
            cli.main(["link", "--out", out, "--budget", "0.01"])
        assert not end.value.code
    finally:
        fit.SIZES_BYTES, measure.CHECKED_BYTES = sizes, checked
    return printed.getvalue()
