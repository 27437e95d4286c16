# python tests/fuzz.py --count 100000
"""Hostile payloads, many of them: every compressor decodes or refuses whatever arrives.

Of each compressor of the contract table and each form in `compressor_cases`, `--count` payloads
are mutated and decoded: codecs alone, half of them as units with headers and several scopes, and
one in twenty in whole steps of three ranks; compressors that are no codecs in whole steps only.
Memory ends at pages that nobody may touch, a process may not allocate more than 1 GiB, and one
that hangs is ended; each compressor has a process of its own. The seed is printed: with `--seed`
the same payloads come again. Ends with status 1 if anything was found.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import resource
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO

import torch
import torch._dynamo  # or else each child imports it, at first use
from _pages import Fenced
from compressor_cases import ALL, AROUND, with_feedback

from compressa.codecs import Codec
from compressa.compressor import Compressor
from compressa.testing.hostile import CodecFuzz, UnitFuzz
from compressa.testing.hostile_rounds import RoundFuzz

_CASES = {**ALL, **AROUND}
_BATCH = 1000
_BATCH_S = 60.0  # a batch takes a fraction of a second; in a minute it hangs
_MOST_BYTES = 1 << 30
_UNITS, _ROUNDS = 2, 20  # one of so many mutations
_MEASURED = 500


@dataclass(frozen=True)
class Part:
    """A fuzzer, and how many of the mutations are for it."""

    what: str
    fuzz: CodecFuzz | UnitFuzz | RoundFuzz
    count: int


def parts(compressor: Compressor, seed: int, count: int) -> Iterator[Part]:
    """Yield what there is to do for a compressor."""
    if isinstance(compressor, Codec):
        yield Part("payloads", CodecFuzz(compressor, seed, Fenced), count)
        yield Part("units", UnitFuzz(compressor, seed), -(-count // _UNITS))
        yield Part("steps", RoundFuzz(with_feedback(compressor), seed), -(-count // _ROUNDS))
    else:
        yield Part("steps", RoundFuzz(compressor, seed), count)


def work_through(part: Part, end_s: float) -> str:
    """Judge a part's mutations in batches, until they are done or the time is over."""
    started_s = time.monotonic()
    left = part.count
    while left and time.monotonic() < end_s:
        faulthandler.dump_traceback_later(_BATCH_S, exit=True)
        part.fuzz.run(min(left, _BATCH))
        left -= min(left, _BATCH)
    if isinstance(part.fuzz, CodecFuzz):
        faulthandler.dump_traceback_later(_BATCH_S, exit=True)
        part.fuzz.run_measured(min(part.count, _MEASURED))
    faulthandler.cancel_dump_traceback_later()
    tally, seconds = part.fuzz.tally, time.monotonic() - started_s
    return (
        f"{part.what} {tally.total} ({tally.decoded} decoded, {tally.refused} refused, "
        f"{seconds:.1f} s)"
    )


def fuzz_one(compressor: Compressor, seed: int, count: int, seconds: float) -> str:
    """Fuzz one compressor; return one line of what was done."""
    torch.set_num_threads(1)
    made = list(parts(compressor, seed, count))
    limit_memory()
    end_s = time.monotonic() + seconds
    return ", ".join(work_through(part, end_s) for part in made)


def limit_memory() -> None:
    """Refuse this process more than another GiB of addresses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + _MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def in_children(
    works: Mapping[str, Callable[[], str]], jobs: int
) -> Iterator[tuple[str, bool, str]]:
    """Run `jobs` at a time; yield name, whether all is well and the report as they end."""
    fork = multiprocessing.get_context("fork")
    waiting, running = list(works.items())[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name, work = waiting.pop()
            report = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_outcome`
            child = fork.Process(target=_run, args=(work, report))
            child.start()
            running[child.sentinel] = name, child, report
        for sentinel in wait(running):
            name, child, report = running.pop(sentinel)
            child.join()
            yield name, *_outcome(child.exitcode, report)


def _run(work: Callable[[], str], report: IO[bytes]) -> None:
    """In the child: write what comes of it, and end."""
    os.dup2(report.fileno(), 2)
    faulthandler.enable()
    code = 1
    try:
        text = work()
        code = 0
    except BaseException:
        text = traceback.format_exc()
    os.write(2, text.encode())
    os._exit(code)


def _outcome(code: int, report: IO[bytes]) -> tuple[bool, str]:
    """Return whether all is well, and the report."""
    with report:
        report.seek(0)
        text = report.read().decode(errors="replace").strip()
    if code < 0:
        text += f"\nended by signal {-code}: it touched memory that is not its own"
    return code == 0, text


def main() -> int:
    """Fuzz what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="payloads of each compressor")
    parser.add_argument("--seconds", type=float, default=600.0, help="most time for each")
    parser.add_argument("--seed", type=int, default=None, help="printed by the run to repeat")
    parser.add_argument("--compressor", action="append", choices=sorted(_CASES), help="only these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    chosen, found, started_s = options.compressor or list(_CASES), [], time.monotonic()
    works = {n: partial(fuzz_one, _CASES[n], seed, options.count, options.seconds) for n in chosen}
    for name, well, text in in_children(works, options.jobs):
        print(f"{'ok   ' if well else 'FOUND'} {name}: {text}", flush=True)
        found += [] if well else [name]
    print(f"{len(found)} of {len(chosen)} with findings: {', '.join(found) or 'none'}")
    print(f"{time.monotonic() - started_s:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
