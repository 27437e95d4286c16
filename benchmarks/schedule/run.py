"""ScheduleBench: brings hosts up, has their ranks measure one part after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from benchmarks.hosts import Processors, opened_hosts
from benchmarks.schedule.costs import CHUNKS, UNITS, chunk_costs
from benchmarks.schedule.jobs import Port, two_jobs
from benchmarks.schedule.plan import AUTO, Settings
from benchmarks.schedule.pushes import four_workers
from benchmarks.schedule.records import Header, Overhead, Pipelined, ScheduleMeasurement, Traced
from benchmarks.schedule.steps import Steps
from benchmarks.schedule.training import ELEMS, LAYERS, started_trainers
from compressa.machine import now
from compressa.testbed import NetnsTestbed, check_links
from harness.ranks import Ranks

_SERVED_HOSTS = 5
_SHARED_LINK = "100mbit"
_PIPELINED, _PIPELINED_ROUNDS = "int8", 7
_WIRE_SHARE = 2.0  # of the time on the wire to that in the codec: the bound is 1.5 then
_FASTEST_BITS_PER_S = 1e9
_TRIED_LINK = "200mbit"
_TRACED, _TRACED_BATCH, _TRACED_PAIRS = "int8", 4096, 10
_TRACED_LINK = "50mbit"


class ScheduleBench:
    """Measures one part after the other.

    Args:
        settings: What is to be measured.

    Attributes:
        found: What was measured so far.
    """

    def __init__(self, settings: Settings) -> None:
        header = Header.here(parameters=ELEMS, layers=LAYERS, budget_s=settings.budget_s)
        self.found = ScheduleMeasurement(header=header)
        self._settings = settings

    def run(self) -> Iterator[str]:
        """Measure everything; say what comes next, after each row.

        Raises:
            BackendUnavailable: There are no network namespaces here; the message says why.
            TransportError: A rank died or failed, or the links do not hold their rate.
        """
        parts = self._settings.parts
        if "overhead" in parts:
            yield "what is done for each chunk"
            for what, chunk_s in chunk_costs():
                row = Overhead(what=what, chunks=CHUNKS, chunk_us=1e6 * chunk_s, timestamp=now())
                self.found.overhead.append(row)
        if {"steps", "hook", "trace", "jobs"} & set(parts):
            yield "two hosts: bringing them up"
            with opened_hosts(2, _TRIED_LINK) as bed:
                yield from self._measure_on(bed)
        if "server" in parts:
            yield "four workers and one server"
            with opened_hosts(_SERVED_HOSTS, _SHARED_LINK) as bed:
                self.found.pushes.append(four_workers(bed))

    def _measure_on(self, bed: NetnsTestbed) -> Iterator[str]:
        """What two hosts are enough for."""
        parts = self._settings.parts
        if "steps" in parts:
            for compressor in self._settings.compressors:
                for link, ratios in self._settings.ratios_on(compressor).items():
                    yield from self._measure_steps(bed, link, compressor, ratios)
        if {"hook", "trace"} & set(parts):
            bed.set_link(_TRIED_LINK)
            with started_trainers(bed) as ranks:
                self.found.header.versions["torch"] = ranks.version
                if "hook" in parts:
                    yield "units through the hook alone"
                    self.found.pipelined.append(_pipelined(bed, ranks))
                if "trace" in parts:
                    yield "steps with a trace and without"
                    self.found.traced.append(_traced(bed, ranks))
        if "jobs" in parts:
            for port in get_args(Port):
                yield f"two jobs on one link, {port}"
                self.found.jobs.append(two_jobs(bed, _SHARED_LINK, port))

    def _measure_steps(
        self, bed: NetnsTestbed, link: str, compressor: str, ratios: Sequence[float]
    ) -> Iterator[str]:
        bed.set_link(link)
        check_links(bed)
        with started_trainers(bed) as ranks:
            self.found.header.versions["torch"] = ranks.version
            measured = Steps(ranks, str(bed.link), self._settings, compressor)
            yield from measured.prepare()
            for ratio in ratios:
                case, steps = yield from measured.case(ratio)
                self.found.cases.append(case)
                self.found.steps.extend(steps)
            ranks.ask("close")


def _pipelined(bed: NetnsTestbed, ranks: Ranks) -> Pipelined:
    """Measure units at the rate at which the wire takes twice as long as the codec."""
    tried = ranks.ask("units", compressor=_PIPELINED, rounds=1)
    rate = bed.link.rate_bits_per_s
    assert rate is not None
    codec_s = tried["encode_s"] + tried["decode_s"]
    rate *= tried["wire_s"] / (_WIRE_SHARE * codec_s)
    bed.set_link(f"{round(min(rate, _FASTEST_BITS_PER_S) / 1e6)}mbit")
    processors = Processors()
    found = ranks.ask("units", compressor=_PIPELINED, rounds=_PIPELINED_ROUNDS)
    return Pipelined(
        compressor=_PIPELINED,
        link=str(bed.link),
        units=UNITS,
        **found,
        load=processors.load(),
        timestamp=now(),
    )


def _traced(bed: NetnsTestbed, ranks: Ranks) -> Traced:
    """Measure steps of `auto`."""
    bed.set_link(_TRACED_LINK)
    figures, trace = (str(ranks.folder / name) for name in ("link.json", "t.json"))
    ranks.ask("fit", path=figures)
    ranks.ask("open", compressor=_TRACED, methods=[AUTO], link=figures)
    ranks.ask("size", batch=_TRACED_BATCH)
    ranks.ask("warm", method=AUTO)
    told = ranks.ask("trace", method=AUTO, path=trace, pairs=_TRACED_PAIRS)
    ranks.ask("close")
    return Traced(**told, timestamp=now())
