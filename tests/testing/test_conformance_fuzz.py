"""The fuzz target finds what ends a process, and repeats itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from _ranks import Pools

from compressa.aggregators.powersgd import PowerSGD
from compressa.codecs import TopK
from compressa.testing.hostile import CodecFuzz
from compressa.testing.hostile_rounds import RoundFuzz

pytestmark = pytest.mark.alone

TESTS = Path(__file__).parents[1]


def run(pools: Pools, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [pools.zygote.python, *command],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=100,
        cwd=TESTS,
        check=False,
    )


def test_a_seed_brings_the_same_payloads_again() -> None:
    for made in (lambda seed: CodecFuzz(TopK(), seed), lambda seed: RoundFuzz(PowerSGD(), seed)):
        tallies = []
        for seed in (77, 77, 78):
            fuzz = made(seed)
            fuzz.run(200)
            tallies.append(fuzz.tally)
        assert tallies[0] == tallies[1] != tallies[2]
        assert tallies[0].total == 200


def test_the_command_prints_its_seed_and_what_it_did(pools: Pools) -> None:
    done = run(pools, "fuzz.py", "--count", "200", "--seed", "77", "--compressor", "int8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 77\nok    int8: payloads 400 (")
    assert "0 of 1 with findings" in done.stdout


FAULTY = """
from functools import partial
import fuzz
from faulty_codecs import Lists, NeverEnds, TrustsItsCount, WritesWhereItIsTold
fuzz._BATCH, fuzz._BATCH_S = 100, 15.0  # beside others that compute, 1000 may take three seconds
codecs = (Lists(), WritesWhereItIsTold(), NeverEnds(), TrustsItsCount())
works = {type(c).__name__: partial(fuzz.fuzz_one, c, 5, 2000, 60.0) for c in codecs}
for name, well, text in fuzz.in_children(works, 4):
    print(name, well, text.replace(chr(10), " "))
"""


@pytest.fixture(scope="module")
def findings(pools: Pools) -> dict[str, str]:
    done = run(pools, "-c", FAULTY)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_a_sound_codec_passes(findings: dict[str, str]) -> None:
    assert findings["Lists"].startswith("True payloads 2500")


def test_a_write_far_outside_is_found(findings: dict[str, str]) -> None:
    assert findings["WritesWhereItIsTold"].startswith("False")
    assert "ended by signal 11" in findings["WritesWhereItIsTold"]


def test_a_payload_that_never_ends_is_found(findings: dict[str, str]) -> None:
    assert findings["NeverEnds"].startswith("False Timeout")
    assert "in check" in findings["NeverEnds"]


def test_an_allocation_beyond_the_layout_is_found(findings: dict[str, str]) -> None:
    assert re.match("False .* (allocates|MemoryError)", findings["TrustsItsCount"])
