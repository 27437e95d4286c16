# python tests/stress/stress.py --count 200
"""Random schedules of overlapping faults on real ranks, against what must always hold.

Each schedule (`_stress_schedules`) has ranks of its own that train a small model, and some to which
things happen, several at a time: killed, stopped, late, cut off, heard with flipped bits, in a
collective call alone, with a forked child, beside a group of a part. After a loss, the survivors
call `handle.reform` and train on. What must hold (`_stress_invariants`):

- verdict: all survivors raise the same error, and it names only ranks that something happened to;
  so does what a lost rank raises when it is back; nothing happens without an error;
- time: they know within deadline + 1 s, and nothing hangs;
- replicas: after each step, and at the end, their parameters are the same, bit by bit;
- mass: what came out, and what is owed, is what went in, to rounding; what survivors owe goes
  through `reform` bit by bit;
- calls: what was called alone fails alone, and works when all call it;
- left: no thread, socket, file, child or model remains, and each process ends in order.

Faults act by step and not by time, and all are drawn from a seed: `--seed S --only K` repeats one.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # what several folders of tests use

from _stress_arena import DEADLINE_S, SLACK_S, Arena, kinds_here, transports_here
from _stress_schedules import KINDS, TRANSPORTS, draw


def main() -> int:
    """Run schedules; return the exit status."""
    asked = _asked()
    kinds, transports = asked.kinds or kinds_here(), asked.transports or transports_here()
    first, count = (asked.first, asked.count) if asked.only is None else (asked.only, 1)
    print(f"{count} schedules, --seed {asked.seed}, deadline {asked.deadline:g} s")
    print(f"not here: {sorted((set(KINDS) - set(kinds)) | (set(TRANSPORTS) - set(transports)))}")
    broken: Counter[str] = Counter()
    done, slowest_s, started_s = 0, 0.0, time.monotonic()
    with closing(Arena(asked.deadline, asked.slack)) as arena:
        for number in range(first, first + count):
            schedule = draw(asked.seed, number, kinds, transports)
            if asked.verbose:
                print(f"{number:4d} {schedule}", flush=True)
            done += 1
            try:
                slowest_s = max(slowest_s, arena.run(schedule))
            except AssertionError as error:
                broken[getattr(error, "what", "left")] += 1
                print(f"\nschedule {number}: {schedule}\n{error}")
                print(f"again: {_command(asked.seed, number, kinds, transports)}\n", flush=True)
                if not asked.keep_going:
                    break
    print(
        f"{done} schedules, {broken.total()} broken {dict(broken)}; the slowest survivor knew "
        f"after {slowest_s:.2f} s; {time.monotonic() - started_s:.0f} s"
    )
    return min(broken.total(), 1)


def _command(seed: int, number: int, kinds: Sequence[str], transports: Sequence[str]) -> str:
    """Say how to draw a schedule again, also where other kinds of faults can be inflicted."""
    command = f"python tests/stress/stress.py --seed {seed} --only {number}"
    if set(kinds) != set(KINDS):
        command += f" --kinds {' '.join(kinds)}"
    if set(transports) != set(TRANSPORTS):
        command += f" --transports {' '.join(transports)}"
    return command


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--only", type=int, help="the number of a single one")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="in seconds")
    parser.add_argument(
        "--slack", type=float, default=SLACK_S, help="in seconds, on a slow machine"
    )
    parser.add_argument("--kinds", nargs="*", choices=KINDS)
    parser.add_argument("--transports", nargs="*", choices=TRANSPORTS)
    parser.add_argument("--keep-going", action="store_true", help="also after one was broken")
    parser.add_argument("--verbose", action="store_true", help="print each schedule")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
