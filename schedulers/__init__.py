"""Who goes next on the wire: pure functions from what is known to a plan.

Schedulers know sizes and times, never tensors; they have no threads and no clock, and import
nothing of the rest of compressa.
"""

if __name__ != "compressa.schedulers":
    raise ImportError(
        f"this folder is the package compressa.schedulers, not {__name__}: install compressa "
        "(`pip install -e .`) and import compressa.schedulers"
    )

from compressa.schedulers.fifo import fifo
from compressa.schedulers.plan import Plan, Transfer
from compressa.schedulers.priority import priority

POLICIES = {"fifo": fifo, "priority": priority}

__all__ = ["POLICIES", "Plan", "Transfer", "fifo", "priority"]
