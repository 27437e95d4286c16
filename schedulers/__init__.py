"""Who goes next on the wire: pure functions from what is known to a plan.

Schedulers know sizes and times, never tensors; they have no threads and no clock, and import
nothing of the rest of compressa.
"""

if __name__ != "compressa.schedulers":
    raise ImportError(
        f"this folder is the package compressa.schedulers, not {__name__}: install compressa "
        "(`pip install -e .`) and import compressa.schedulers"
    )

from compressa.schedulers.auto import auto
from compressa.schedulers.credit import chunk_bytes, credit, credit_bytes
from compressa.schedulers.fifo import fifo
from compressa.schedulers.link import Link
from compressa.schedulers.merge import merge
from compressa.schedulers.plan import Name, Plan, Transfer
from compressa.schedulers.policy import Conditions, Policy
from compressa.schedulers.predict import Prediction, launches, predict
from compressa.schedulers.priority import priority
from compressa.schedulers.profile import Profile, UnitTimes

_ROWS = (fifo, priority, credit, merge, auto)

POLICIES: dict[str, Policy] = {row.name: row for row in _ROWS}
"""What `schedule.policy` chooses from: a new policy is a file, and a row above."""

__all__ = [
    "POLICIES",
    "Conditions",
    "Link",
    "Name",
    "Plan",
    "Policy",
    "Prediction",
    "Profile",
    "Transfer",
    "UnitTimes",
    "auto",
    "chunk_bytes",
    "credit",
    "credit_bytes",
    "fifo",
    "launches",
    "merge",
    "predict",
    "priority",
]
