"""ExchangeBench: brings testbeds up, has their ranks measure rows, and collects these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.exchange.method import Method
from benchmarks.exchange.others import OTHERS, Others
from benchmarks.exchange.plan import Cell, Settings
from benchmarks.exchange.records import (
    ExchangeMeasurement,
    Header,
    Network,
    Omitted,
    Row,
)
from benchmarks.exchange.simulate import simulated
from benchmarks.exchange.sums import AUTO
from benchmarks.hosts import Processors, line_rate, opened_hosts
from benchmarks.timing import Samples
from compressa.collectives.choice import CANDIDATES
from compressa.engine.start.link_file import Figures
from compressa.errors import TransportError
from compressa.link.chain import Ask, Timed
from compressa.link.fit import MOST_BYTES, fitted
from compressa.machine import memory_bytes as machine_memory_bytes
from compressa.machine import now
from compressa.testbed import Testbed, check_links
from harness.ranks import Ranks
from harness.start import started_ranks

_OURS = ("compressa", "gloo")
_START_S = 180.0
_PATIENCE_S = 60.0
_PATIENCE = 20.0  # so many times as long as expected a row may take
_MEMORY_SHARE = 0.25
_LEAST_COUNTED = 0.97
_MOST_FIT_S = 0.2


@dataclass(frozen=True)
class _LiveNetwork:
    """A network that is up, where rows are measured.

    Attributes:
        bed: The hosts.
        ranks: On them.
        network: What the links are like.
        figures: The same, as `auto` chooses by them; None where it is not asked for.
    """

    bed: Testbed
    ranks: Ranks
    network: Network
    figures: Figures | None = None

    def calibrated_s(self, method: Method, size_bytes: int) -> float | None:
        """What `auto` takes a sum for; None of what it does not choose from."""
        if self.figures is None or method.name not in self.figures.costs.measured:
            return None
        return self.figures.costs.time_s(method.name, size_bytes, self.network.hosts)

    def __str__(self) -> str:
        return f"{self.network.hosts} hosts, {self.network.link}"


class ExchangeBench:
    """Measures rows one after the other.

    Args:
        settings: What is to be measured.

    Attributes:
        found: What was measured so far.
    """

    def __init__(self, settings: Settings) -> None:
        header = Header.here(budget_s=settings.budget_s, longest_s=settings.longest_s)
        self.found = ExchangeMeasurement(header=header, networks=[], rows=[], omitted=[])
        self._settings = settings

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, after each row.

        Raises:
            BackendUnavailable: There are no network namespaces here; the message says why.
            TransportError: A rank died or failed, or the links do not hold their rate.
        """
        yield from self._simulate()
        for hosts in self._settings.all_hosts():
            yield f"{hosts} hosts: bringing them up"
            with opened_hosts(hosts, self._settings.links_of(hosts)[0]) as bed:
                yield from self._measure_ours(bed)
                for others in OTHERS:
                    yield from self._measure_others(bed, others)

    def _simulate(self) -> Iterator[str]:
        part = self._settings.chosen().get("hosts")
        for method in part.methods if part else ():
            for row in simulated(method.name):
                yield f"virtual clock: {row.method}, {row.hosts} ranks"
                self.found.simulated.append(row)

    def _measure_ours(self, bed: Testbed) -> Iterator[str]:
        """Ours and Gloo's, on all links; also what each link is like."""
        settings, hosts = self._settings, len(bed.hosts)
        most_bytes = max(settings.most_bytes(hosts), MOST_BYTES)
        deadline_s = _PATIENCE_S + _PATIENCE * settings.longest_s
        served = "benchmarks.exchange.rank:Exchanges"
        with started_ranks(bed, served, deadline_s=deadline_s) as ranks:
            self.found.header.versions["torch"] = ranks.version
            ranks.ask("open", most_bytes=most_bytes, deadline_s=deadline_s)
            for link in settings.links_of(hosts):
                bed.set_link(link)
                check_links(bed)
                yield f"{hosts} hosts, {bed.link}: line rate and cost model"
                live = self._fitted(bed, ranks)
                self.found.networks.append(live.network)
                yield from self._measure(live, lambda method: method.by in _OURS)

    def _fitted(self, bed: Testbed, ranks: Ranks) -> _LiveNetwork:
        """Find out what a link is like; from then on `auto` chooses by it."""
        line_bytes_per_s, hosts = line_rate(bed), len(bed.hosts)
        budget_s = min(self._settings.budget_s, _MOST_FIT_S)
        chooses = any(self._settings.cells(hosts, str(bed.link), lambda m: m.name == AUTO))
        ask = partial(_timed, ranks, _PATIENCE_S)
        figures = fitted(hosts, budget_s, ask, CANDIDATES if chooses else ())
        network = Network(
            hosts=hosts,
            link=str(bed.link),
            rate_bits_per_s=bed.link.rate_bits_per_s,
            line_bytes_per_s=line_bytes_per_s,
            **vars(figures.link),
            byte_spread=figures.byte_spread,
        )
        return _LiveNetwork(bed, ranks, network, figures)

    def _measure_others(self, bed: Testbed, others: Others) -> Iterator[str]:
        """Another library's own, last: its processes may use up processors while they wait."""
        hosts = len(bed.hosts)
        here = [network for network in self.found.networks if network.hosts == hosts]
        cells = [
            (network, cell)
            for network in here
            for cell in self._settings.cells(hosts, network.link, others.owns)
        ]
        if not cells:
            return
        if missing := others.missing():
            self._omit(cells, missing)
            return
        try:
            started = Ranks(others.speakers or hosts, partial(others.start, bed), _START_S)
        except TransportError as error:
            self._omit(cells, f"{others.maker} does not start: {error}")
            return
        with started as ranks:
            self.found.header.versions[others.maker] = ranks.version
            for network in here:
                bed.set_link(network.link)
                yield from self._measure(_LiveNetwork(bed, ranks, network), others.owns)

    def _measure(self, live: _LiveNetwork, wanted: Callable[[Method], bool]) -> Iterator[str]:
        network = live.network
        for cell in self._settings.cells(network.hosts, network.link, wanted):
            why = too_much(cell.method, cell.size_bytes, network, self._settings.longest_s)
            if why:
                self._omit([(network, cell)], why)
                continue
            yield f"{live}: {cell.method.name}, {cell.size_bytes:,} bytes"
            self.found.rows.append(self._row(live, cell))

    def _omit(self, cells: Iterable[tuple[Network, Cell]], why: str) -> None:
        self.found.omitted.extend(
            Omitted(
                part=cell.part,
                hosts=network.hosts,
                link=network.link,
                method=cell.method.name,
                size_bytes=cell.size_bytes,
                why=why,
            )
            for network, cell in cells
        )

    def _row(self, live: _LiveNetwork, cell: Cell) -> Row:
        network, method, size_bytes = live.network, cell.method, cell.size_bytes
        hosts = network.hosts
        formula_bytes = method.formula_bytes(size_bytes, hosts)
        line_s = formula_bytes / network.line_bytes_per_s
        more = {}
        if method.name == AUTO and live.figures is not None:
            more = {"figures": live.figures.model_dump(mode="json")}
        ask = Ask(method.name, size_bytes, self._settings.budget_s, cell.rounds)
        expected_s = max(ask.budget_s, cell.rounds * line_s) + line_s
        before_bytes, processors = _sent(live.bed), Processors()
        found = _timed(live.ranks, _PATIENCE_S + _PATIENCE * expected_s, ask, **more)
        load, samples = processors.load(), Samples(tuple(found.samples_s))
        counted_bytes = (_sent(live.bed) - before_bytes) // found.operations
        if network.rate_bits_per_s is not None:
            check_counted(method, size_bytes, hosts, counted_bytes)
        return Row(
            part=cell.part,
            hosts=hosts,
            link=network.link,
            method=method.name,
            by=method.by,
            verb=method.verb,
            size_bytes=size_bytes,
            **samples.spread(),
            operations=found.operations,
            formula_bytes=formula_bytes,
            line_rate_share=line_s / samples.median,
            predicted_s=method.predicted_s(network.cost, size_bytes, hosts),
            calibrated_s=live.calibrated_s(method, size_bytes),
            counted_bytes=counted_bytes,
            load=load,
            timestamp=now(),
        )


def too_much(method: Method, size_bytes: int, network: Network, longest_s: float) -> str:
    """Say why something is not measured; nothing if it is.

    Args:
        method: What would be.
        size_bytes: Of what.
        network: Where.
        longest_s: Longest operation of a method that needs no more bytes than the best.
    """
    hosts = network.hosts
    if hosts < method.least_ranks:
        return f"it takes {method.least_ranks} hosts"
    room_bytes = _MEMORY_SHARE * machine_memory_bytes()
    needs = method.needs(size_bytes, hosts)
    if needs.memory_bytes > room_bytes:
        return "more memory than this machine can spare"
    formula_bytes = method.formula_bytes(size_bytes, hosts)
    excess = formula_bytes / needs.floor_bytes
    expected_s = formula_bytes / network.line_bytes_per_s
    return f"{expected_s:.0f} s for one operation" if expected_s > longest_s / excess else ""


def check_counted(method: Method, size_bytes: int, ranks: int, counted_bytes: float) -> None:
    """Refuse a time in which the bytes have not passed the links.

    Raises:
        TransportError: They have not: the ranks have found a shorter way.
    """
    sent_bytes = method.needs(size_bytes, ranks).sent_bytes
    if counted_bytes < _LEAST_COUNTED * sent_bytes:
        raise TransportError(
            f"{method.name} of {size_bytes} bytes on {ranks} hosts has to send {sent_bytes} bytes, "
            f"and the interfaces counted {counted_bytes:.0f}: it does not use the links"
        )


def _timed(ranks: Ranks, patience_s: float, ask: Ask, **more: object) -> Timed:
    """Have all ranks time something; of each chain the slowest counts."""
    return Timed(**ranks.ask("timed", patience_s, **ask._asdict(), **more))


def _sent(bed: Testbed) -> int:
    counters = bed.counters()
    assert counters is not None  # hosts are namespaces
    return sum(counter.tx_bytes for counter in counters)
