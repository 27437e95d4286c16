"""ExchangeBench: brings testbeds up, has their ranks measure rows, and collects these."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from compressa.bench.machine import memory_bytes as machine_memory_bytes
from compressa.bench.machine import now
from compressa.bench.network import methods
from compressa.bench.network.fit import MOST_BYTES, fitted, line_rate
from compressa.bench.network.methods import METHODS, Method
from compressa.bench.network.processors import Processors
from compressa.bench.network.ranks import Ranks, Started
from compressa.bench.network.records import ExchangeMeasurement, Network, Omitted, Row, header
from compressa.bench.network.start import missing_mpi, start_mpi, start_ranks
from compressa.bench.network.wire import Ask
from compressa.bench.timing import Samples
from compressa.errors import BackendUnavailable, ConfigError, TransportError
from compressa.testbed import Testbed, open_testbed

_START_S = 180.0  # eight processes import torch on two cores
_PATIENCE_S = 60.0
_PATIENCE = 20.0  # so many times as long as expected a row may take
_MEMORY_SHARE = 0.25
_LEAST_COUNTED = 0.97


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is to be measured.

    Attributes:
        hosts: Numbers of hosts.
        links: Speeds of their links, as `LinkSpec` writes them.
        sizes_bytes: Of what is summed, or of what each rank gives.
        pattern: That names of methods match.
        budget_s: Seconds for a row.
        longest_s: Longest operation, by its formula; the more bytes a method needs than the best,
            the shorter is its own.
    """

    hosts: Sequence[int]
    links: Sequence[str]
    sizes_bytes: Sequence[int]
    pattern: str = "*"
    budget_s: float = 0.5
    longest_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what matches nothing."""
        if not self.methods():
            names = ", ".join(method.name for method in METHODS)
            raise ConfigError(f"--what: no name matches {self.pattern!r}; there are: {names}")

    def methods(self, *, of_mpi: bool | None = None) -> list[Method]:
        """Return those that match; all, or MPI's, or all others."""
        return [
            method
            for method in METHODS
            if fnmatchcase(method.name, self.pattern) and of_mpi in (None, method.by == "mpi")
        ]


class ExchangeBench:
    """Measures rows one after the other.

    Args:
        settings: What is to be measured.
        progress: Told what is being done.
        kept: Called after each row.

    Attributes:
        networks: That were measured so far; likewise rows and what was omitted.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Callable[[str], None] = lambda text: None,
        kept: Callable[[ExchangeBench], None] = lambda bench: None,
    ) -> None:
        self.networks: list[Network] = []
        self.rows: list[Row] = []
        self.omitted: list[Omitted] = []
        self._settings = settings
        self._progress = progress
        self._kept = kept
        self._versions: dict[str, str] = {}
        self._processors = Processors()

    def measurement(self) -> ExchangeMeasurement:
        """Return all of it so far, as it is written down."""
        head = header(self._settings.budget_s, self._settings.longest_s, self._versions)
        return ExchangeMeasurement(
            header=head, networks=self.networks, rows=self.rows, omitted=self.omitted
        )

    def run(self) -> None:
        """Measure everything.

        Raises:
            BackendUnavailable: There are no network namespaces here; the message says why.
            TransportError: A rank died or failed, or the links do not hold their rate.
        """
        for hosts in self._settings.hosts:
            self._progress(f"{hosts} hosts: bringing them up")
            with _opened(hosts, self._settings.links[0]) as bed:
                self._measure_ours(bed)
                self._measure_mpi(bed)

    def _measure_ours(self, bed: Testbed) -> None:
        """Ours and Gloo's, on all links; also what each link is like."""
        settings = self._settings
        most_bytes = max(*settings.sizes_bytes, MOST_BYTES)
        deadline_s = _PATIENCE_S + _PATIENCE * settings.longest_s
        start = partial(start_ranks, most_bytes=most_bytes, deadline_s=deadline_s)
        with _folder() as folder, _ranks(bed, folder, partial(start, bed, folder)) as ranks:
            self._versions["torch"] = ranks.version
            for link in settings.links:
                bed.set_link(link)
                bed.self_check()
                self._progress(f"{_place(bed)}: line rate and cost model")
                line_bytes_per_s = line_rate(bed)
                ask = partial(ranks.ask, patience_s=_PATIENCE_S)
                network = fitted(bed, line_bytes_per_s, settings.budget_s, ask)
                self.networks.append(network)
                self._measure(bed, ranks, network, settings.methods(of_mpi=False))

    def _measure_mpi(self, bed: Testbed) -> None:
        """MPI's own, last: its ranks use up a processor each while they wait."""
        wanted = self._settings.methods(of_mpi=True)
        missing = missing_mpi() if wanted else ""
        if missing:
            self._omit_mpi(bed, wanted, missing)
        if missing or not wanted:
            return
        with _folder() as folder:
            try:
                started = _ranks(bed, folder, partial(start_mpi, bed, folder))
            except TransportError as error:
                self._omit_mpi(bed, wanted, f"mpiexec starts nothing: {error}")
                return
            with started as ranks:
                self._versions["mpi"] = ranks.version
                for network in self.networks[-len(self._settings.links) :]:
                    bed.set_link(network.link)
                    self._measure(bed, ranks, network, wanted)

    def _omit_mpi(self, bed: Testbed, wanted: Sequence[Method], why: str) -> None:
        self.omitted += [
            Omitted(hosts=len(bed.hosts), link=None, method=method.name, size_bytes=None, why=why)
            for method in wanted
        ]

    def _measure(
        self, bed: Testbed, ranks: Ranks, network: Network, wanted: Sequence[Method]
    ) -> None:
        """Measure one size after the other, so that a noisy time disturbs all methods alike."""
        for size_bytes in self._settings.sizes_bytes:
            for method in wanted:
                why = self._too_much(method, size_bytes, network)
                if why:
                    self._omit(network, method, size_bytes, why)
                    continue
                self._progress(f"{_place(bed)}: {method.name}, {size_bytes:,} bytes")
                self.rows.append(self._row(bed, ranks, network, method, size_bytes))
                self._kept(self)

    def _omit(self, network: Network, method: Method, size_bytes: int, why: str) -> None:
        self.omitted.append(
            Omitted(
                hosts=network.hosts,
                link=network.link,
                method=method.name,
                size_bytes=size_bytes,
                why=why,
            )
        )

    def _too_much(self, method: Method, size_bytes: int, network: Network) -> str:
        """Say why something is not measured; nothing if it is."""
        room_bytes = _MEMORY_SHARE * machine_memory_bytes()
        if methods.memory_bytes(method, size_bytes, network.hosts) > room_bytes:
            return "more memory than this machine can spare"
        formula_bytes = method.formula_bytes(size_bytes, network.hosts)
        excess = formula_bytes / methods.least_bytes(method.verb, size_bytes, network.hosts)
        expected_s = formula_bytes / network.line_bytes_per_s
        most_s = self._settings.longest_s / excess
        return f"{expected_s:.0f} s for one operation" if expected_s > most_s else ""

    def _row(
        self, bed: Testbed, ranks: Ranks, network: Network, method: Method, size_bytes: int
    ) -> Row:
        budget_s, hosts = self._settings.budget_s, network.hosts
        formula_bytes = method.formula_bytes(size_bytes, hosts)
        line_s = formula_bytes / network.line_bytes_per_s
        before_bytes = _sent(bed)
        self._processors.start()
        ask = Ask(method.name, size_bytes, budget_s)
        samples_s, operations = ranks.ask(ask, _PATIENCE_S + _PATIENCE * (budget_s + line_s))
        load, samples = self._processors.load(), Samples(tuple(samples_s))
        counted_bytes = (_sent(bed) - before_bytes) // operations
        if network.rate_bits_per_s is not None:
            check_counted(method, size_bytes, hosts, counted_bytes)
        predicted_s = None
        if method.stages is not None:
            predicted_s = network.cost.time_s(method.stages(size_bytes, hosts))
        return Row(
            hosts=hosts,
            link=network.link,
            method=method.name,
            by=method.by,
            verb=method.verb,
            size_bytes=size_bytes,
            median_s=samples.median,
            p20_s=samples.p20,
            p80_s=samples.p80,
            operations=operations,
            formula_bytes=formula_bytes,
            line_rate_share=line_s / samples.median,
            predicted_s=predicted_s,
            counted_bytes=counted_bytes,
            load=load,
            timestamp=now(),
        )


def check_counted(method: Method, size_bytes: int, ranks: int, counted_bytes: float) -> None:
    """Refuse a time in which the bytes have not passed the links.

    Raises:
        TransportError: They have not: the ranks have found a shorter way.
    """
    sent_bytes = method.sent_bytes(size_bytes, ranks)
    if counted_bytes < _LEAST_COUNTED * sent_bytes:
        raise TransportError(
            f"{method.name} of {size_bytes} bytes on {ranks} hosts has to send {sent_bytes} bytes, "
            f"and the interfaces counted {counted_bytes:.0f}: it does not use the links"
        )


def _opened(hosts: int, link: str) -> Testbed:
    try:
        return open_testbed(hosts, link, kind="netns", self_check=False)
    except BackendUnavailable as refusal:
        raise BackendUnavailable(
            f"compressa bench exchange measures between network namespaces only. {refusal}"
        ) from refusal


def _ranks(bed: Testbed, folder: Path, start: Callable[[Path], Sequence[Started]]) -> Ranks:
    return Ranks(len(bed.hosts), folder, start, _START_S)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="compressa-") as folder:
        yield Path(folder)


def _sent(bed: Testbed) -> int:
    counters = bed.counters()
    assert counters is not None  # hosts are namespaces
    return sum(counter.tx_bytes for counter in counters)


def _place(bed: Testbed) -> str:
    return f"{len(bed.hosts)} hosts, {bed.link}"
