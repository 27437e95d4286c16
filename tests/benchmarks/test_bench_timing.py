"""The arithmetic of benchmarks, on a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.kernels.device import CPU
from benchmarks.timing import (
    Interleaved,
    Samples,
    Stopwatch,
    affordable,
    interleave,
    limit_ratio,
)


class Hand:
    """A clock, and calls that take as long as they are told."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: list[str] = []

    def watch(self, least_s: float = 0.0) -> Stopwatch:
        return Stopwatch(lambda: self.now_s, least_s, lambda: self.calls.append("pause"))

    def call(self, name: str, *seconds: float) -> Callable[[], None]:
        """A call that takes the given times in turn, and the last one from then on."""
        left = list(seconds)

        def call() -> None:
            self.calls.append(name)
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_quantiles_are_those_of_the_samples() -> None:
    samples = Samples((5.0, 1.0, 4.0, 2.0, 3.0, 6.0))
    assert samples.median == 3.5
    assert (samples.p20, samples.p80) == (2.0, 5.0)
    assert samples.map(lambda value: 10 * value).median == 35.0
    assert Samples((7.0,)).p20 == Samples((7.0,)).median == Samples((7.0,)).p80 == 7.0


def test_a_case_and_its_yardstick_take_turns() -> None:
    hand = Hand()
    times = interleave(hand.watch(), hand.call("case", 0.5), hand.call("yard", 0.25), repeats=3)
    assert hand.calls[-11:] == ["pause", "yard", "case"] * 3 + ["pause", "yard"]
    assert times.call_s.values == (0.5,) * 3
    assert times.yardstick_s.values == (0.25,) * 4


def test_the_limit_ratio_is_the_time_of_the_bytes_over_the_time_taken() -> None:
    # The bus carries 12 GB in 0.25 s, so 24 GB take it 0.5 s; the call took 2 s.
    times = Interleaved(Samples((2.0, 1.0, 9.0)), Samples((0.25, 0.5, 0.2, 0.25)))
    assert limit_ratio(24e9, 12e9, times) == pytest.approx(0.25)


@pytest.mark.parametrize("call_s", [1e-7, 3e-6, 1e-4, 0.9e-3])
def test_quick_calls_are_repeated_until_a_sample_is_long_enough(call_s: float) -> None:
    hand = Hand()
    watch, call = hand.watch(least_s=1e-3), hand.call("call", call_s)
    loops = watch.loops(call)
    assert loops * call_s >= 1e-3 * (1 - 1e-9)
    assert loops * call_s <= 5e-3
    assert watch.sample(call, loops) == pytest.approx(call_s)


def test_a_slow_call_is_a_sample_by_itself() -> None:
    hand = Hand()
    assert hand.watch(least_s=1e-3).loops(hand.call("call", 0.01)) == 1


def test_slow_peers_are_repeated_less_often_and_never_measured_cold() -> None:
    hand = Hand()
    watch = hand.watch(least_s=1e-3)
    assert affordable(watch, hand.call("quick", 0.01), repeats=9, budget_s=3.0) == 9
    assert affordable(watch, hand.call("slow", 1.0), repeats=9, budget_s=3.0) == 3
    assert affordable(watch, hand.call("slower", 40.0), repeats=9, budget_s=3.0) == 1
    assert hand.calls == ["quick", "slow", "slower"]


@pytest.mark.parametrize("elems", [0, 1, 17, 1000])
def test_the_yardstick_adds_in_place(elems: int) -> None:
    updated = torch.arange(elems, dtype=torch.float32)
    CPU.stream(updated, torch.full((elems,), 2.0))
    assert torch.equal(updated, torch.arange(elems) + 2.0)
