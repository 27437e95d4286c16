"""Gradients that come while an engine fails: whoever waits for them is told."""

from __future__ import annotations

from contextlib import closing
from unittest import mock

import pytest
import torch
from _until import until
from engines import engine_over
from torch import nn

from compressa.codecs import Int8
from compressa.config import parameter_infos
from compressa.errors import TransportError


def test_what_comes_after_the_failure_and_was_let_in_before_it_is_refused() -> None:
    (info,) = parameter_infos(nn.Linear(4, 4, bias=False))

    def mark(_: object) -> None:
        """Between the look for a failure and the taking in, have one come on the other thread."""
        engine._communication.fail(TransportError("the link is over"))
        assert until(engine._communication._settled.is_set)

    with closing(engine_over([info], {info.name: Int8()})) as engine:
        gradients = {info.name: torch.ones(info.shape)}
        with (
            mock.patch.object(engine.device_stream, "mark", mark),
            pytest.raises(TransportError, match="the link is over"),
        ):
            engine.submit(gradients, step=0)
