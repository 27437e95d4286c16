"""A roll call names who has not come, and waits for nothing for longer than its deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from compressa.config import Config
from compressa.engine import opening, process_groups, rollcall
from compressa.engine.lanes import Lane
from compressa.engine.rollcall import RollCall
from compressa.errors import CompressaError, ConfigError, PayloadError, Timeout


@pytest.fixture
def store() -> Iterator[dist.Store]:
    """A store in memory, as if ranks had been started with it."""
    made = dist.HashStore()
    with (
        mock.patch.object(dist.distributed_c10d, "_get_default_store", return_value=made),
        mock.patch.object(rollcall, "_ASK_S", 0.5),
    ):
        yield made


def call_of(rank: int, size: int = 3, deadline_s: float = 0.2) -> RollCall:
    group: Any = mock.Mock(rank=lambda: rank, size=lambda: size, group_name="g")
    return RollCall(group, deadline_s, "a function")


def refuse() -> None:
    raise RuntimeError("wait timeout after 200ms\nand many lines more")


def test_what_all_make_together_is_returned(store: dist.Store) -> None:
    assert call_of(0).together(lambda: "made") == "made"


def test_who_has_not_come_is_named(store: dist.Store) -> None:
    call_of(1).together(lambda: None)
    said = r"rank 0 waited in a function .* ranks 2 did not come within 0\.2 s"
    with pytest.raises(Timeout, match=said) as caught:
        call_of(0).together(refuse)
    assert caught.value.ranks == (2,)


def test_where_all_have_come_one_was_lost_on_the_way(store: dist.Store) -> None:
    for rank in (1, 2):
        call_of(rank).together(lambda: None)
    with pytest.raises(Timeout, match=r"one of the ranks 1, 2 was lost .*\(wait timeout") as caught:
        call_of(0).together(refuse)
    assert caught.value.ranks == (1, 2)


def test_a_call_that_does_not_return_is_left_alone(store: dist.Store) -> None:
    over = threading.Event()
    with pytest.raises(Timeout, match="ranks 1, 2 did not come"):
        call_of(0).together(over.wait)
    over.set()


def test_a_store_that_does_not_answer_is_named(store: dist.Store) -> None:
    over = threading.Event()
    silent: Any = mock.Mock(set=lambda *_: over.wait(), clone=lambda: over.wait() and store)
    with (
        mock.patch.object(dist.distributed_c10d, "_get_default_store", return_value=silent),
        pytest.raises(Timeout, match=r"the store .* did not answer within"),
    ):
        call_of(0).together(lambda: None)
    over.set()


def test_nobody_goes_on_asking_a_store_that_is_gone() -> None:
    patience = timedelta(seconds=60)
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", served.port, wait_for_workers=False, timeout=patience)
    store = dist.PrefixStore("of the ranks", client)
    del served
    with (
        mock.patch.object(dist.distributed_c10d, "_get_default_store", return_value=store),
        pytest.raises(Timeout, match="one of the ranks 1, 2 was lost"),
    ):
        call_of(0).together(refuse)
    assert not [each for each in threading.enumerate() if each.name == "compressa-start"]


def test_another_error_is_told_as_it_is(store: dist.Store) -> None:
    with pytest.raises(ZeroDivisionError):
        call_of(0).together(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("error", "times"),
    [(Timeout((1,), "late"), 1), (PayloadError("nonsense"), 1), (ConfigError("they differ"), 0)],
)
def test_mpi_is_not_finalized_after_a_registration_that_failed(
    error: CompressaError, times: int
) -> None:
    """The others will not come to its end, unless all of them have heard the same."""
    config = Config.model_validate({"exchange": {"transport": "mpi"}})
    ranks: Any = SimpleNamespace(size=lambda: 2)
    fail: Callable[..., Any] = mock.Mock(side_effect=error)
    with (
        mock.patch.object(process_groups, "new_group", fail),
        mock.patch.object(process_groups, "left_behind") as noted,
        pytest.raises(type(error)),
    ):
        opening.open_engine(config, {}, [], Lane(), ranks)
    assert noted.call_count == times


def test_where_an_error_happened_is_said_once() -> None:
    error = Timeout((1,), "too late")
    for _ in range(2):
        error.locate("rank 0 was after step 3")
    assert str(error) == "too late; rank 0 was after step 3"
    assert error.ranks == (1,)
