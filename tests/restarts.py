# python tests/restarts.py --kills 20
"""Workers of torchrun are killed at random moments; the run must end with the bits of one without.

A training of `_restart_rank` runs under `torchrun --max-restarts`. Again and again a random worker
is killed by SIGKILL at a random moment, from its first line on: while it imports, registers, loads,
trains or saves. torchrun starts all workers anew, which go on from the last whole checkpoint, with
residuals. The final parameters of every rank must be, bit by bit, those of a run without kills.
Without compressa ("plain") two ranks do the same; more do not, since DDP sums the gradients of the
first step after a start in another order.

torchrun's own store outlives restarts, and Gloo then finds addresses of workers that are gone
(pytorch/pytorch#135712), with or without compressa: so each start gets a store of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_RANK = Path(__file__).with_name("_restart_rank.py")
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_LOOK_S = 0.01
_LATEST_S = 1.5  # after a worker has begun, it is killed at the latest
STEPS_PER_KILL = 150  # at 100 a second, so that all kills come before the end


def run(
    folder: Path,
    compressor: str,
    *,
    ranks: int,
    kills: int,
    steps: int,
    seed: int,
    within_s: float,
    python: str = sys.executable,
) -> list[str]:
    """Train under torchrun, with kills; return every rank's digest.

    Args:
        folder: Empty.
        compressor: As `_restart_rank.train` takes it.
        ranks: How many workers.
        kills: How many there are in all.
        steps: Of training.
        seed: Of victims and moments.
        within_s: Longest that it may take, in seconds.
        python: Runs torchrun and the workers.

    Raises:
        AssertionError: It failed, hung, or came to its end before all kills.
    """
    chance, end_s = random.Random(seed), time.monotonic() + within_s
    command = [python, "-m", "torch.distributed.run"]
    command += ["--nproc-per-node", str(ranks), "--max-restarts", str(kills)]
    command += ["--monitor-interval", "0.1", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", str(_RANK), str(folder), compressor, str(steps)]
    log = folder / "log"
    with log.open("wb") as output:
        job = subprocess.Popen(
            command,
            env=os.environ | {"OMP_NUM_THREADS": "1", _OWN_STORE: "1", "PYTHON_EXEC": python},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        for attempt in range(kills):
            victim, delay_s = chance.randrange(ranks), chance.uniform(0, _LATEST_S)
            pid = _begun(folder / f"pid-{attempt}-{victim}", job, end_s)
            assert pid is not None, f"no attempt {attempt}:\n{log.read_text()[-4000:]}"
            time.sleep(delay_s)
            os.kill(pid, signal.SIGKILL)
        code = job.wait(max(0.0, end_s - time.monotonic()))
        assert code == 0, f"torchrun ended with {code}:\n{log.read_text()[-4000:]}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGTERM)  # torchrun ends its workers
        job.wait(30.0)
    return [(folder / f"digest-{rank}").read_text() for rank in range(ranks)]


def _begun(file: Path, job: subprocess.Popen[bytes], end_s: float) -> int | None:
    """Wait until a worker has begun; return its process id, or None if it does not."""
    while time.monotonic() < end_s and job.poll() is None:
        with contextlib.suppress(OSError):
            if text := file.read_text():
                return int(text)
        time.sleep(_LOOK_S)
    return None


def main() -> int:
    """Run each compressor with and without kills; return how many differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="of each run")
    parser.add_argument("--ranks", type=int, default=2, help="workers")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    parser.add_argument("--compressors", nargs="+", default=["plain", "none", "int8"])
    asked = parser.parse_args()
    how = {"ranks": asked.ranks, "steps": STEPS_PER_KILL * (asked.kills + 1), "seed": asked.seed}
    differ = 0
    for compressor in asked.compressors:
        found = []
        for kills in (0, asked.kills):
            began_s = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                within_s = 600.0 + 120.0 * kills
                digests = run(Path(folder), compressor, kills=kills, within_s=within_s, **how)
            found.append(digests)
            print(f"{compressor}, {kills} kills: {time.monotonic() - began_s:.0f} s", flush=True)
        alike = len({digest for digests in found for digest in digests}) == 1
        print(f"{compressor}: {'the same bits' if alike else f'other bits: {found}'}", flush=True)
        differ += not alike
    return differ


if __name__ == "__main__":
    sys.exit(main())
