"""The kit checks a compressor of another package without pytest, Hypothesis or a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import socket, sys

sys.modules.update(pytest=None, hypothesis=None)

def refuse(*arguments, **more):
    raise OSError("there is no network")

socket.socket.__init__ = refuse
from compressa.testing import check_compressor
from faulty_codecs import ForgetsTheLossScale, Lists

check_compressor(Lists, most_ranks=2)
try:
    check_compressor(ForgetsTheLossScale)
except AssertionError as error:
    print(error)
"""


def test_an_outsider_gets_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=100,
        cwd=Path(__file__).parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "faulty: encode_feedback and encode of the corrected gradient differ\n"
