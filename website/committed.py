"""Where committed measurements are, and how their files get on the site."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEASUREMENTS = ROOT / "docs" / "measurements"
RESULTS = ROOT / "experiments" / "results"
