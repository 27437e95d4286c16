"""A monitored call names who has not come, and waits for nothing for longer than its deadline."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from compressa.config import Config
from compressa.engine import opening
from compressa.engine.start import monitored_call, startup
from compressa.engine.start.monitored_call import MonitoredCall
from compressa.errors import CompressaError, ConfigError, PayloadError, Timeout
from compressa.transports import mpi_process


@pytest.fixture
def store() -> Iterator[dist.Store]:
    """A store in memory, as if ranks had been started with it."""
    made = dist.HashStore()
    with (
        mock.patch.object(dist.distributed_c10d, "_get_default_store", return_value=made),
        mock.patch.object(monitored_call, "_ASK_S", 0.5),
    ):
        yield made


def call_of(rank: int, size: int = 3, deadline_s: float = 0.2) -> MonitoredCall:
    return MonitoredCall("g", rank, size, deadline_s, "a function")


def refuse(*_: object) -> None:
    raise RuntimeError("wait timeout after 200ms\nand many lines more")


def name_of(name: str, store: dist.Store) -> str:
    """Return the name that all have been given, if their part of the store is theirs alone."""
    store.add("ranks", 1)
    return name


def all_of(ranks: Sequence[int], call: Callable[..., Any], **options: Any) -> list[Any]:
    """Return what each rank's call gave, or the error that it raised."""

    def one(rank: int) -> Any:
        try:
            return call_of(rank, **options).run(call)
        except CompressaError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


def test_what_all_make_together_has_one_name_and_a_place_of_its_own(store: dist.Store) -> None:
    names = [all_of([2, 0, 1], name_of) for _ in range(2)]
    for first, *others in names:
        assert others == [first, first]
        assert dist.PrefixStore(first, store).get("ranks") == b"3"
    assert names[0][0] != names[1][0]


def test_who_has_not_come_is_named_by_those_who_have(store: dist.Store) -> None:
    said = r"rank \d waited in a function .* ranks 2 did not come within 0\.2 s"
    for error in all_of([0, 1], name_of):
        assert isinstance(error, Timeout)
        assert error.ranks == (2,)
        assert re.search(said, str(error))


def test_who_gives_up_a_moment_before_has_come_all_the_same(store: dist.Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        sooner = pool.submit(all_of, [1], name_of, deadline_s=0.3)
        later = all_of([0], name_of, deadline_s=0.6)
    for error in (*sooner.result(), *later):
        assert error.ranks == (2,)


def test_nor_is_it_named_while_it_gives_up(store: dist.Store) -> None:
    left, go_on = threading.Event(), threading.Event()

    class Slow:
        """What a rank does to the store after it has taken a key out of it, it does late."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def delete_key(self, key: str) -> bool:
            gone = store.delete_key(key)
            left.set()
            go_on.wait(5.0)
            return gone

    first = call_of(0)
    first._store = Slow()
    with ThreadPoolExecutor(1) as pool:
        sooner = pool.submit(lambda: first.run(name_of))
        second = call_of(1, deadline_s=1.0)
        with pytest.raises(Timeout) as caught:
            second.run(name_of)
        go_on.set()
        with pytest.raises(Timeout):
            sooner.result()
    assert left.is_set()
    assert caught.value.ranks == (2,)


def test_who_comes_after_all_others_gave_up_says_so_of_itself(store: dist.Store) -> None:
    all_of([0, 1], name_of)
    with pytest.raises(Timeout, match=r"ranks 0, 1 had given up waiting before rank 2") as caught:
        call_of(2).run(name_of)
    assert caught.value.ranks == (2,)


def test_who_had_given_up_is_not_named_beside_who_never_came(store: dist.Store) -> None:
    all_of([0], name_of)
    with pytest.raises(Timeout, match=r"ranks 2 did not come within") as caught:
        call_of(1).run(name_of)
    assert caught.value.ranks == (2,)


def test_who_came_to_the_last_call_and_not_to_this_one_is_named(store: dist.Store) -> None:
    assert len(set(all_of(range(3), name_of, deadline_s=5.0))) == 1
    with pytest.raises(Timeout, match=r"ranks 0, 2 did not come within") as caught:
        call_of(1).run(name_of)
    assert caught.value.ranks == (0, 2)


@pytest.mark.parametrize("alone", [[0], [1], [2], [1, 2]])
def test_a_call_that_some_have_made_alone_does_no_harm_to_the_next(
    alone: list[int], store: dist.Store
) -> None:
    assert all(isinstance(error, Timeout) for error in all_of(alone, name_of))
    assert len(set(all_of(range(3), name_of, deadline_s=5.0))) == 1


@pytest.mark.parametrize("killed", [[1], [1, 2], [0, 1, 2]])
def test_who_was_killed_in_the_call_does_not_stand_in_for_who_is_started_anew(
    killed: list[int], store: dist.Store
) -> None:
    for rank in killed:
        store.set(f"compressa/g/here/{rank}", "what nobody looks at any more\n")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(all_of, [0, 2], name_of, deadline_s=5.0)
        time.sleep(0.2)
        (late,) = all_of([1], name_of, deadline_s=5.0)
    assert first.result() == [late, late]


def test_where_all_have_come_one_was_lost_on_the_way(store: dist.Store) -> None:
    said = r"one of the ranks 1, 2 was lost .*\(wait timeout"
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(all_of, [1, 2], name_of, deadline_s=5.0)
        with pytest.raises(Timeout, match=said) as caught:
            call_of(0, deadline_s=5.0).run(refuse)
        others.result()
    assert caught.value.ranks == (1, 2)


def test_a_call_that_does_not_return_is_left_alone(store: dist.Store) -> None:
    over = threading.Event()
    with pytest.raises(Timeout, match=r"was lost on the way, or did not go on"):
        call_of(0, size=1).run(lambda *_: over.wait())
    over.set()


def test_a_store_that_does_not_answer_is_named(store: dist.Store) -> None:
    over = threading.Event()
    answers = {"add": lambda *_: 1, "clone": lambda: over.wait() and store}
    silent: Any = mock.Mock(set=lambda *_: over.wait(), **answers)
    with (
        mock.patch.object(dist.distributed_c10d, "_get_default_store", return_value=silent),
        pytest.raises(Timeout, match=r"the store .* did not answer within"),
    ):
        call_of(0).run(name_of)
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
        call_of(0).run(refuse)
    assert not [each for each in threading.enumerate() if each.name == "compressa-start"]


def test_another_error_is_told_as_it_is(store: dist.Store) -> None:
    with pytest.raises(ZeroDivisionError):
        call_of(0, size=1).run(lambda *_: 1 // 0)


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
        mock.patch.object(startup, "open_control", fail),
        mock.patch.object(mpi_process, "start_failed") as noted,
        pytest.raises(type(error)),
    ):
        opening.start_engine(config, ranks, [], {})
    assert noted.call_count == times


def test_where_an_error_happened_is_said_once() -> None:
    error = Timeout((1,), "too late")
    for _ in range(2):
        error.locate("rank 0 was after step 3")
    assert str(error) == "too late; rank 0 was after step 3"
    assert error.ranks == (1,)
