"""A headless Chromium, told what to do by the DevTools protocol over a pair of pipes."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_DEADLINE_S = 60.0
_WHERE = "document.readyState === 'complete' ? location.href : ''"


@dataclass
class Browser:
    """One tab.

    Attributes:
        complaints: What pages wrote to the console as an error or a warning, and exceptions.
        requested: Every URL that pages asked for.
    """

    _to: int
    _from: int
    _session: str = ""
    _sent: int = 0
    _unread: bytes = b""
    complaints: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command; return its result."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._sent:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str, width: int, *, dark: bool = False) -> None:
        """Go to a page, as wide as a screen is, and wait until it has loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + _DEADLINE_S
        while self.evaluate(_WHERE) != url:
            assert time.monotonic() < deadline, f"{url} does not load"
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """Return the value of JavaScript in the page; of a promise, what it promises."""
        how = {"awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def begin(self) -> None:
        """Open the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + _DEADLINE_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], deadline - time.monotonic())
            assert ready, "the browser says nothing"
            read = os.read(self._from, 1 << 20)
            assert read, "the browser has ended"
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method", ""), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        called = method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")
        logged = method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning")
        if called or logged or method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start one with a profile of its own, and end it."""
    assert PROGRAM is not None
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    options = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe"
    script = f'exec "$0" {options} --user-data-dir="$1" 3<&{command_read} 4>&{answer_write}'
    process = subprocess.Popen(
        ["bash", "-c", script, PROGRAM, str(profile)],
        pass_fds=(command_read, answer_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_read)
    os.close(answer_write)
    try:
        tab = Browser(command_write, answer_read)
        tab.begin()
        yield tab
        tab._session = ""
        tab.call("Browser.close")
        process.wait(timeout=_DEADLINE_S)
    finally:
        process.kill()
        process.wait()
        os.close(command_write)
        os.close(answer_read)
