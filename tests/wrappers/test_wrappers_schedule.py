"""A density schedule changes the density at its steps, and nothing is lost."""

from __future__ import annotations

import itertools

from compressa.codecs import NoCompression, TopK
from compressa.parameters import ParameterInfo
from compressa.testing import LoopbackWorld, MassLedger
from compressa.testing.conformance import check_among_ranks
from compressa.testing.inputs import MODEL, model_gradients
from compressa.wrappers import DenseBelow, DensitySchedule, ErrorFeedback, MomentumCorrection

SPARSE = ErrorFeedback(codec=TopK(density=0.01))


def densities(schedule: DensitySchedule, steps: int) -> list[float]:
    return [schedule.at(step).codec.density for step in range(steps)]  # type: ignore[attr-defined]


def test_a_schedule_conforms() -> None:
    check_among_ranks(DensitySchedule(compressor=SPARSE, steps=5, densities=(0.2, 0.1)))


def test_steps_are_shared_out_equally_between_densities() -> None:
    schedule = DensitySchedule(compressor=SPARSE, steps=8, densities=(0.25, 0.063, 0.015))
    assert schedule.breakpoints == (2, 5, 8)
    assert densities(schedule, 10) == [0.25] * 2 + [0.063] * 3 + [0.015] * 3 + [0.01] * 2


def test_only_what_has_a_density_is_scheduled() -> None:
    below = DenseBelow(compressor=MomentumCorrection(compressor=SPARSE), elems=50)
    schedule = DensitySchedule(compressor=below, steps=4, densities=(0.5,))
    small, large = ParameterInfo(0, "b", (10,)), ParameterInfo(1, "w", (100,))
    assert schedule.for_parameter(small) == NoCompression()
    assert schedule.for_parameter(large).at(3) == MomentumCorrection(
        compressor=ErrorFeedback(codec=TopK(density=0.5))
    )
    assert schedule.at(4) == below


def test_payloads_get_smaller_and_no_mass_is_lost() -> None:
    world = LoopbackWorld(
        3, MODEL, DensitySchedule(compressor=SPARSE, steps=6, densities=(0.5, 0.1))
    )
    ledger, sent = MassLedger(world), [0]
    for step in range(10):
        ledger.step(world, model_gradients(3, step))
        ledger.check(world, f"step {step}")
        sent.append(world.sent_bytes(0))
    each = [after - before for before, after in itertools.pairwise(sent)]
    assert each[0] > each[3] > each[6]
