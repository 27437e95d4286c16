"""Plan: which methods take turns, on which hosts and links, and which cases are wanted."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

from benchmarks.steps.models import MODELS
from compressa.compressors import COMPRESSORS
from compressa.errors import ConfigError
from compressa.testbed import LinkSpec
from harness import runner
from harness.runner import refuse_strangers

Client = Literal["alone", "ddp", "torch powersgd", "epfml powersgd", "hook", "overlapped"]

APPROX_RANK = 2
"""Of everybody's PowerSGD."""

HYPER: Mapping[str, Mapping[str, Any]] = {
    "topk": {"density": 0.01},
    "powersgd": {"approx_rank": APPROX_RANK},
}
"""Hyper-parameters by compressor; those of all others are their defaults."""


@dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes:
        name: As tables show it.
        client: What brings gradients to the other ranks, if anything.
        compressor: Of ours; empty if it is another's.
    """

    name: str
    client: Client
    compressor: str = ""

    @classmethod
    def ours(cls, compressor: str, client: Client) -> Self:
        """Name it after its compressor."""
        return cls(f"{compressor}, {client}", client, compressor)

    @property
    def config(self) -> dict[str, Any]:
        """What a user would write: all that is left out is as it is by default."""
        return {"compressor": {"name": self.compressor, **HYPER.get(self.compressor, {})}}


ALONE = Method("compute alone", "alone")
DDP = Method("DDP float32", "ddp")
NONE = Method.ours("none", "hook")
TORCH_POWERSGD = Method("PyTorch's PowerSGD", "torch powersgd")
EPFML_POWERSGD = Method("epfml/powersgd", "epfml powersgd")
COMPRESSED = ("int8", "onebit", "topk", "powersgd")


def has_epfml() -> bool:
    """Whether epfml/powersgd can be imported: no package registry has it."""
    return importlib.util.find_spec("powersgd") is not None


class Network(NamedTuple):
    """Hosts of a testbed, and their links.

    Attributes:
        hosts: How many.
        link: Speed of each link, as `LinkSpec` writes it.
    """

    hosts: int
    link: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read hosts and their links.

        Example:
            >>> Network.parse("4x100mbit")
            Network(hosts=4, link='100mbit')

        Raises:
            ConfigError: The text is neither.
        """
        hosts, _, link = text.partition("x")
        if not hosts.isdecimal() or int(hosts) < 2:
            raise ConfigError(f'--network: {text!r} is no network; write "2x1gbit" or "4xunshaped"')
        return cls(int(hosts), str(LinkSpec.parse(link)))


FAST, SLOW, UNSHAPED = Network(2, "1gbit"), Network(4, "100mbit"), Network(4, "unshaped")
NETWORKS = (FAST, SLOW, UNSHAPED)

PARTS = (
    "steps",  # of training: each method in turn, by network and model
    "messages",  # a small message, and the same beside a thread that keeps the interpreter
)


@dataclass(frozen=True, kw_only=True)
class Settings(runner.Settings):
    """What is to be measured; computing alone always is.

    Attributes:
        compressors: Of ours, each by the hook and overlapped.
        networks: Hosts and links of the part "steps".
        models: Names of what is trained there.
        rounds: How often each method takes its turn.
        budget_s: Seconds of one turn, about.
    """

    known: ClassVar[Sequence[str]] = PARTS

    parts: Sequence[str] = known
    budget_s: float = 0.4
    compressors: Sequence[str] = COMPRESSED
    networks: Sequence[Network] = NETWORKS
    models: Sequence[str] = field(default_factory=lambda: tuple(MODELS))
    rounds: int = 5

    @property
    def methods(self) -> list[Method]:
        """Return what takes turns, in this order."""
        others = [DDP, NONE, TORCH_POWERSGD] + [EPFML_POWERSGD] * has_epfml()
        ours = [
            Method.ours(compressor, client)
            for compressor in self.compressors
            for client in ("hook", "overlapped")
        ]
        wanted = [method for method in others + ours if self.matches(method.name)]
        return [ALONE, *dict.fromkeys(wanted)]

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        super().__post_init__()
        refuse_strangers("--compressor", self.compressors, COMPRESSORS)
        refuse_strangers("--model", self.models, MODELS)
