"""A transport on a thread of its own, and what its exchanges call back with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from compressa.errors import CompressaError
from compressa.transports.base import Key, Received, Traffic, Transport
from compressa.transports.reactor import Reactor


class Answers:
    """Collects what an exchange calls back with."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._results: dict[Key, Received | CompressaError] = {}
        self.order: list[Key] = []

    def done(self, key: Key) -> Any:
        def callback(result: Received | CompressaError) -> None:
            with self._arrived:
                assert key not in self._results, "an exchange called back twice"
                self._results[key] = result
                self.order.append(key)
                self._arrived.notify_all()

        return callback

    def wait(self, key: Key, timeout_s: float = 10.0) -> Received | CompressaError:
        with self._arrived:
            assert self._arrived.wait_for(lambda: key in self._results, timeout_s), key
            return self._results[key]


class Reacting:
    """A transport with a reactor on a thread of its own, where all calls to it are made."""

    def __init__(self, transport: Transport) -> None:
        self.rank, self.size = transport.rank, transport.size
        self.transport = transport
        self._reactor = Reactor()
        self._ended = False
        transport.attach(self._reactor)
        self._thread = threading.Thread(target=self._run, name="reactor")
        self._thread.start()

    @property
    def traffic(self) -> Traffic:
        return self.transport.traffic

    def exchange(self, *arguments: Any) -> None:
        self._call(lambda: self.transport.exchange(*arguments))

    def all_reduce(self, *arguments: Any) -> None:
        self._call(lambda: self.transport.all_reduce(*arguments))

    def fail(self, error: CompressaError) -> None:
        self._call(lambda: self.transport.fail(error))

    def missing(self, key: Key) -> Any:
        return self._call(lambda: self.transport.missing(key))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have the reactor's thread do nothing meanwhile."""
        stopped, goes_on = threading.Event(), threading.Event()

        def stop() -> None:
            stopped.set()
            goes_on.wait(20.0)

        self._reactor.post(stop)
        assert stopped.wait(20.0)
        try:
            yield
        finally:
            goes_on.set()

    def close(self, timeout_s: float) -> None:
        self._reactor.post(self._end)
        self._thread.join()
        self.transport.close(timeout_s)
        self._reactor.close()

    def _call(self, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except CompressaError as error:
                future.set_exception(error)

        self._reactor.post(call)
        return future.result(10.0)

    def _run(self) -> None:
        while not self._ended:
            self._reactor.run_once(10.0)

    def _end(self) -> None:
        self._ended = True
