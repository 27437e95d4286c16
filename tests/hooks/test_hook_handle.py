"""What a handle leaves behind: nothing of its own, and all of others'."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from compressa.config import Config
from compressa.engine.session import Session
from compressa.engine.start import process_groups
from compressa.errors import Timeout
from compressa.hooks import handle as module
from compressa.hooks import reform
from compressa.hooks.handle import Handle
from compressa.transports.alone import Alone


def test_to_close_a_handle_leaves_the_ends_of_others() -> None:
    exits: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def unregister(function: Callable[..., object]) -> None:  # all that are equal, as atexit does
        exits[:] = [entry for entry in exits if entry[0] != function]

    fake = SimpleNamespace(register=lambda f, *a: exits.append((f, a)), unregister=unregister)
    engines = [mock.Mock(), mock.Mock()]
    with mock.patch.object(module, "atexit", fake):
        handles = [Handle(engine, mock.Mock()) for engine in engines]
        handles[0].close()
        for function, arguments in exits.copy():
            function(*arguments)
    assert [engine.close.call_count for engine in engines] == [1, 1]
    assert not exits


def test_a_reform_that_fails_half_way_keeps_neither_engine_nor_groups() -> None:
    control: Any = mock.Mock(
        all_gather=mock.Mock(side_effect=Timeout((1,), "rank 1 is late")),
        verdict=lambda error: error,
    )
    groups = [mock.Mock()]
    session = Session(Config(), Alone(), control, threads=1, groups=groups)
    old: Any = mock.Mock(interrupted=True, step=3)
    with (
        mock.patch.object(reform, "start_engine", return_value=mock.Mock(session=session)),
        mock.patch.object(process_groups, "release_groups") as released,
        mock.patch.object(process_groups, "new_group_of") as made,
        pytest.raises(Timeout),
    ):
        reform.reform(old, Config(), 3, mock.Mock())
    control.close.assert_called_once()
    assert released.mock_calls == [mock.call(groups), mock.call([made.return_value])]
    old.undo.restore.assert_not_called()
