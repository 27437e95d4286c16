"""Scenario: a measured step under other conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from compressa.aggregators.base import State, World
from compressa.collectives.choice import Costs
from compressa.collectives.cost import Link as CostLink
from compressa.config import Config, load_config, recompressed
from compressa.config.load import Source
from compressa.engine.measuring.profile_file import ProfileFile
from compressa.engine.start.link_file import LinkFile
from compressa.engine.units.partition import Sizes, partition
from compressa.engine.units.sums import Sums, lowers
from compressa.engine.units.world import world_of
from compressa.errors import ConfigError
from compressa.rates import data_bytes_per_s
from compressa.schedulers import Link
from compressa.simulation.network import Network
from compressa.transports.base import Transport

DEFAULT_LATENCY_S = 50e-6
DEFAULT_OVERHEAD_S = 20e-6
_MOST_HOSTS = 1024


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is simulated.

    Attributes:
        file: What was measured.
        config: Settings, which need not be those of the file.
        hosts: How many, each with one rank.
        link: What connects them; each has a port of its own. `chunk_bytes` and `credit_bytes` are
            left to the configuration and the plan.
        overlap: Whether communication goes on in the next forward, as with
            `OverlappedDataParallel`; without, each step ends when all has come.
        recompressed: Whether gradients are compressed in another way than they were.
        jitter: By what part of themselves times of computing vary, from rank to rank and from step
            to step (standard deviation).
        seed: Seed of that.
        steps: How many steps in a row are run; the figures are those of all but the first.
    """

    file: ProfileFile
    config: Config
    hosts: int
    link: Link
    overlap: bool
    recompressed: bool = False
    jitter: float = 0.0
    seed: int = 0
    steps: int = 2

    @classmethod
    def of(
        cls,
        file: ProfileFile,
        *,
        hosts: int | None = None,
        bandwidth_bits_per_s: float | None = None,
        latency_s: float | None = None,
        policy: str | None = None,
        compression: Source | None = None,
        overlap: bool | None = None,
        jitter: float = 0.0,
        seed: int = 0,
        steps: int = 2,
    ) -> Self:
        """Return a scenario; what is not given is as it was measured.

        Args:
            file: What was measured.
            hosts: How many.
            bandwidth_bits_per_s: Of each host's port, headers of Ethernet and TCP included. Not
                given: what the file's link carries, or its configuration's pace.
            latency_s: From port to port. Not given: the message cost of the file's link, or 50 us.
            policy: Who goes next; units are as large as it wants them, unless sizes were given.
            compression: A configuration whose compression is used.
            overlap: See above; as measured: whether it is known when the forward needs what.
            jitter: See above.
            seed: See above.
            steps: See above; at least 2.

        Raises:
            ConfigError: It can not be simulated.
        """
        config = _configured(file, policy, compression)
        link = _link(file.link, config, bandwidth_bits_per_s, latency_s)
        hosts = file.ranks if hosts is None else hosts
        if not 1 <= hosts <= _MOST_HOSTS:
            raise ConfigError(f"{hosts} hosts can not be simulated: give 1 to {_MOST_HOSTS}")
        if steps < 2 or not 0 <= jitter <= 1:
            raise ConfigError("a simulation has 2 steps at least, and a jitter between 0 and 1")
        over = file.forward_s > 0 if overlap is None else overlap
        return cls(
            file=file,
            config=config,
            hosts=hosts,
            link=link,
            overlap=over,
            recompressed=compression is not None,
            jitter=jitter,
            seed=seed,
            steps=steps,
        )

    def world(self, rank: int, hosts: int) -> World:
        """Return what an aggregator needs to know of the run, with no state.

        Args:
            rank: The rank.
            hosts: Number of ranks; each has a host of its own.
        """
        return world_of(self.config, rank, hosts, State())

    def sums(self, transport: Transport) -> Sums:
        """Return what carries a rank's exchanges over its end of a network."""
        overtaking = self.config.schedule.overtaking
        algorithm, costs = self.config.exchange.algorithm, self.costs
        return Sums(transport, algorithm, costs=costs, sizes=self.sizes, overtaking=overtaking)

    def network(self, hosts: int, *, alike: bool) -> Network:
        """Return a new network, with the link and the sizes of the scenario.

        Args:
            hosts: As of `Network`.
            alike: As of `Network`.
        """
        file = self.file
        backend = file.backend_sums and self.config.schedule.pace_bits_per_s is None
        reduce_s = 0.0 if file.link is None else file.link.reduce_s
        chunk_bytes, credit_bytes = self.sizes
        link = replace(self.link, chunk_bytes=chunk_bytes, credit_bytes=credit_bytes)
        tables = file.lowers and lowers(self.config)
        return Network(hosts, link, reduce_s, backend=backend, lowers=tables, alike=alike)

    @property
    def sizes(self) -> Sizes:
        """How ports use the link."""
        return partition(self.config, self.file.infos, self.costs)

    @property
    def compressor(self) -> str:
        """What compresses most parameters."""
        return self.config.compressor.name

    @property
    def costs(self) -> Costs | None:
        """What algorithms are chosen by: measured figures, if there are any, on this link."""
        if self.file.link is None:
            return None
        known = self.file.link.costs
        link = CostLink(self.link.overhead_s, 1 / self.link.bytes_per_s, known.link.reduce_s)
        return Costs(link, known.measured)


def _configured(file: ProfileFile, policy: str | None, compression: Source | None) -> Config:
    config = load_config(file.configuration)
    if compression is not None:
        config = recompressed(config, load_config(compression))
    if policy is None:
        return config
    changed = config.model_dump(mode="json")
    changed["schedule"]["policy"] = policy
    return load_config(changed)


def _link(
    figures: LinkFile | None,
    config: Config,
    bandwidth_bits_per_s: float | None,
    latency_s: float | None,
) -> Link:
    rates = []
    if bandwidth_bits_per_s is not None:
        if not 0 < bandwidth_bits_per_s < float("inf"):
            raise ConfigError(f"{bandwidth_bits_per_s:g} bit/s is no bandwidth")
        rates.append(data_bytes_per_s(bandwidth_bits_per_s))
    elif figures is not None:
        rates.append(1 / figures.byte_s)
    if config.schedule.pace_bits_per_s is not None:
        rates.append(config.schedule.pace_bits_per_s / 8)
    if not rates:
        raise ConfigError(
            "the profile does not say how fast its network was: give a bandwidth, such as 10gbit, "
            "or measure with exchange.link set"
        )
    known = figures.message_s if figures is not None else None
    if latency_s is None:
        latency_s = DEFAULT_LATENCY_S if known is None else known
    return Link(min(rates), latency_s, DEFAULT_OVERHEAD_S if known is None else known)
