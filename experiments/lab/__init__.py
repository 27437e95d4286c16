"""The parts behind the scripts in ``experiments``: tasks, ranks, cells, records, report.

The scripts are run as files, so this folder is found beside them and is never installed.
Of ``compressa`` only the public API is used here. ``harness`` lies beside ``experiments``.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: an installed package goes first
