"""Optimizers made for compression: ranks exchange compressed momenta in place of gradients.

    opt = compressa.optim.OneBitAdam(net.named_parameters(), lr=1e-3, warmup_steps=1000)
    ...
    loss.backward()
    opt.step()

Ordinary `torch.optim.Optimizer`s, but that they communicate: see `CompressedOptimizer`.
"""

from compressa.optim.base import CompressedOptimizer
from compressa.optim.demo import DeMo
from compressa.optim.ef21 import EF21
from compressa.optim.onebit_adam import OneBitAdam
from compressa.optim.onebit_lamb import OneBitLamb
from compressa.optim.signsgd import SignSGD
from compressa.optim.zero_one_adam import ZeroOneAdam

__all__ = [
    "EF21",
    "CompressedOptimizer",
    "DeMo",
    "OneBitAdam",
    "OneBitLamb",
    "SignSGD",
    "ZeroOneAdam",
]
