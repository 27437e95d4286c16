"""The cost of recording is that of neighbouring steps, with and without, in alternating order."""

from __future__ import annotations

import pytest

from benchmarks import paired


def test_steps_with_and_without_are_compared_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    on = False
    turns: list[bool] = []
    fresh = True

    def switch(to: bool) -> None:
        nonlocal on, fresh, now_s
        on, fresh = to, True
        turns.append(on)
        now_s += 50.0  # to write

    def step() -> None:
        nonlocal now_s, fresh
        slow_s = float(len(turns))  # the machine grows slower, for both alike
        now_s += (99.0 if fresh else slow_s) * (1.5 if on else 1.0)
        fresh = False

    monkeypatch.setattr(paired.time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(paired.time, "process_time", lambda: 2 * now_s)
    found = paired.overhead(step, switch, pairs=40, steps=3)
    assert turns[:4] == [False, True, True, False]
    assert turns[-1] is False
    assert found.ratio == pytest.approx(1.5, rel=0.05)
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert found.cpu_ratio == pytest.approx(found.ratio)
    assert 1.0 < found.step_s < len(turns)
