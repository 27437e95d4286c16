"""Multicast between hosts on shaped links, where packets are lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from _between_hosts import MARKS
from _ranks import Pools

from compressa.testbed import open_testbed

pytestmark = MARKS

HOSTS = 3
SIZE = 3 << 20
RANK = """
import json, sys, torch, torch.distributed as dist
sys.path[:] = json.loads(sys.argv[1])
from test_replicas import losing
import compressa
dist.init_process_group("gloo")
rank = dist.get_rank()
due = torch.arange(int(sys.argv[2]), dtype=torch.int64).to(torch.uint8)
held = due.clone() if rank == 1 else torch.zeros_like(due)
every = 11 if rank == 2 else 0
config = {"exchange": {"broadcast": "multicast", "deadline_s": 30.0}}
with losing(every) as lost:
    compressa.broadcast([held], sources=[1], config=config)
print(torch.equal(held, due), len(lost))
"""


def test_all_hosts_hear_one_transmission_though_packets_are_lost(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESSA_TESTBED_DIR", str(tmp_path))
    with open_testbed(hosts=HOSTS, link="1gbit", kind="netns", self_check=False) as bed:
        meeting = {
            "WORLD_SIZE": str(HOSTS),
            "MASTER_ADDR": bed.hosts[0].address,
            "MASTER_PORT": "29500",
            "OMP_NUM_THREADS": "1",
        }
        words = [pools.zygote.python, "-c", RANK, json.dumps(sys.path), str(SIZE)]
        before = bed.counters()
        ranks = [
            bed.spawn(i, words, env={**meeting, "RANK": str(i)}, stdout=subprocess.PIPE)
            for i in range(HOSTS)
        ]
        said = [rank.communicate(timeout=60)[0].decode().split() for rank in ranks]
        after = bed.counters()
    assert [words[0] for words in said] == ["True"] * HOSTS, json.dumps(said)
    lost = [int(words[1]) for words in said]
    assert lost[:2] == [0, 0]
    assert lost[2] > 10
    sent = [now.tx_bytes - then.tx_bytes for now, then in zip(after, before, strict=True)]
    assert SIZE < sent[1] < 1.5 * SIZE  # and not once for each of the others
    assert sent[0] + sent[2] < SIZE / 4
