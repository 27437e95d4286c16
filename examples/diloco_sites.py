# python examples/diloco_sites.py
"""DiLoCo across two sites: a link of 10 Mbit/s and 50 ms is crossed once in 50 steps.

Network namespaces of this machine stand for the sites, which takes root; on real ones start `train`
by torchrun.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import compressa
from compressa.testbed import open_testbed

CONFIG = {"compressor": "int4", "strategy": {"name": "diloco", "every": 50}}
STEPS = 400


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points of the plane, and whether each lies within the unit circle."""
    points = torch.randn(64, 2, generator=generator)
    return points, (points.square().sum(dim=1) < 1).long()


def train() -> None:
    """Train on one rank of a site."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    strategy = compressa.attach(net, optimizer, CONFIG)
    data = torch.Generator().manual_seed(dist.get_rank())
    began_s = time.monotonic()
    for _ in range(STEPS):
        points, labels = batch(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(strategy.model(points), labels).backward()
        strategy.step()
    took_s = time.monotonic() - began_s
    points, labels = batch(torch.Generator().manual_seed(100))
    right = (net(points).argmax(dim=1) == labels).float().mean()
    if dist.get_rank() == 0:
        print(f"{right:.0%} right after {STEPS} steps in {took_s:.1f} s", flush=True)
    strategy.close()
    dist.destroy_process_group()


def main() -> None:
    """Bring two sites up, train one rank on each, and say what crossed the link."""
    with open_testbed(hosts=2, link="10mbit+50ms", kind="netns") as bed:
        rendezvous = {
            "MASTER_ADDR": bed.hosts[0].address,
            "MASTER_PORT": "29500",
            "WORLD_SIZE": "2",
        }
        rendezvous |= {"OMP_NUM_THREADS": "1"}
        before = bed.counters()
        command = [sys.executable, __file__, "site"]
        ranks = [bed.spawn(i, command, env=rendezvous | {"RANK": str(i)}) for i in range(2)]
        codes = [rank.wait() for rank in ranks]
        after = bed.counters()
    if any(codes) or before is None or after is None:
        sys.exit(f"the ranks ended with {codes}")
    sent, dense = (after[0] - before[0]).tx_bytes, 67_074 * 4 * STEPS  # all gradients, in float32
    print(f"{sent / 1e6:.2f} MB left the first site; its gradients are {dense / 1e6:.0f} MB")


if __name__ == "__main__":
    train() if sys.argv[1:] == ["site"] else main()
