"""Chains of operations: how often operations are done, and what is said of it."""

from __future__ import annotations

import pytest

from compressa.link.chain import LEAST_CHAIN_S, timed


@pytest.mark.parametrize(
    ("call_s", "samples"),
    [(1e-4, 7), (0.01, 7), (0.2, 5), (0.5, 3), (1.2, 1), (5.0, 1), (20.0, 1)],
)
def test_all_operations_are_counted_and_chains_long_enough(call_s: float, samples: int) -> None:
    done, verified, now_s, lengths = 0, [], [0.0], []

    def call() -> None:
        nonlocal done
        done += 1
        now_s[0] += call_s

    def barrier() -> None:
        lengths.append(done)

    found, operations = timed(
        call, lambda: verified.append(done), barrier, lambda s: s, 1.0, clock=lambda: now_s[0]
    )
    assert found == pytest.approx([call_s] * samples)
    assert operations == done
    assert verified == [1]
    if samples > 1:
        assert (done - lengths[-1]) * call_s >= LEAST_CHAIN_S * 0.99


@pytest.mark.parametrize("call_s", [2e-6, 2e-5, 1e-3])
@pytest.mark.parametrize("pause_s", [1e-3, 0.04])
def test_a_chain_is_as_long_though_the_operation_that_is_timed_first_pauses(
    call_s: float, pause_s: float
) -> None:
    """Else all chains would lie within a moment in which others use the machine."""
    done, now_s, begun = 0, [0.0], []

    def call() -> None:
        nonlocal done
        done += 1
        now_s[0] += call_s + (pause_s if done == 2 else 0.0)

    found, operations = timed(
        call,
        lambda: None,
        lambda: begun.append(now_s[0]),
        lambda s: s,
        1.0,
        clock=lambda: now_s[0],
    )
    assert found == pytest.approx([call_s] * 7)
    assert operations == done
    assert now_s[0] - begun[-1] >= 0.99 * min(LEAST_CHAIN_S, 2000 * call_s)
