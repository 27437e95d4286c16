"""Simulation: a measured step on other networks, on more hosts, by other policies.

The engine's own drivers carry out the real collectives over a virtual clock, without data, as
schedulers plan them. So a prediction knows everything that a run does but what it takes to do it:
those times come from a profile (`Handle.save_profile`).
"""

from compressa.simulation.scenario import Scenario
from compressa.simulation.simulate import (
    Simulated,
    UnitOutcome,
    compare,
    simulate,
    simulated_step_s,
)

__all__ = ["Scenario", "Simulated", "UnitOutcome", "compare", "simulate", "simulated_step_s"]
