"""`compressa simulate`: how long a measured step would take elsewhere, policy by policy."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from compressa.cli._tables import figures_table, ms, say
from compressa.errors import ConfigError

if TYPE_CHECKING:
    from compressa.simulation import Scenario, Simulated

simulate_app = typer.Typer()

_TIME = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|ms|s)\s*", re.IGNORECASE)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


_Profile = Annotated[
    Path, typer.Option(metavar="FILE", help="What `handle.save_profile` has written.")
]
_Hosts = Annotated[
    int | None,
    typer.Option(min=1, help="How many, with a rank each; as many ranks as were measured."),
]
_Bandwidth = Annotated[
    str | None,
    typer.Option(help='Of each host, such as "10gbit"; that of the measured link, if known.'),
]
_Latency = Annotated[
    str | None,
    typer.Option(help='From host to host, such as "50us", as it is if no link was measured.'),
]
_Policies = Annotated[
    list[str] | None,
    typer.Option(help="As schedule.policy; several times. All of them if not given."),
]
_Compressor = Annotated[
    str | None,
    typer.Option(help="Exchange what this one makes. What its codec computes is not known."),
]
_Overlap = Annotated[
    bool | None,
    typer.Option(
        help="Whether the next forward waits for each parameter where it is used; as measured if "
        "not given.",
    ),
]
_Jitter = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="By how much computing varies, as a share.")
]
_Seed = Annotated[int, typer.Option(help="Of the jitter.")]
_Steps = Annotated[int, typer.Option(min=2, help="How many steps in a row are run.")]
_Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures there.")
]
_Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a trace of the first host for each policy, for ui.perfetto.dev and "
        "`compressa trace summary`; the policy is put into the name.",
    ),
]


@simulate_app.command(
    epilog="Example: compressa simulate --profile profile.json --hosts 64 --bandwidth 10gbit"
)
def simulate(
    profile: _Profile,
    hosts: _Hosts = None,
    bandwidth: _Bandwidth = None,
    latency: _Latency = None,
    policy: _Policies = None,
    compressor: _Compressor = None,
    overlap: _Overlap = None,
    jitter: _Jitter = 0.0,
    seed: _Seed = 0,
    steps: _Steps = 2,
    json_file: _Json = None,
    trace: _Trace = None,
) -> None:
    """Predict how long a step takes on another network, policy by policy.

    The engine's own scheduling and the real collectives run on a virtual clock, without data; what
    is computed takes the time that was measured.

    ideal is max(F + B, C): computing, or the time for which the busiest port is occupied. exposed
    is how long the training waits; idle, how long that port has nothing to carry.
    """
    conditions = {
        "hosts": hosts,
        "bandwidth_bits_per_s": None if bandwidth is None else _bits_per_s(bandwidth),
        "latency_s": None if latency is None else _seconds(latency),
        "compression": None if compressor is None else {"compressor": compressor},
        "overlap": overlap,
        "jitter": jitter,
        "seed": seed,
        "steps": steps,
    }
    results = _compared(_scenarios(profile, policy, conditions))
    if trace is not None:
        _write_traces(results, trace)
    if json_file is not None:
        _write_figures(results, json_file)


def _scenarios(
    profile: Path, policies: list[str] | None, conditions: dict[str, Any]
) -> list[Scenario]:
    from compressa.engine.measuring.profile_file import read
    from compressa.schedulers import POLICIES
    from compressa.simulation import Scenario

    file = read(profile, "--profile: ")
    return [Scenario.of(file, policy=name, **conditions) for name in policies or POLICIES]


def _compared(scenarios: Sequence[Scenario]) -> list[Simulated]:
    """Run scenarios that differ in their policy, and print what comes of them."""
    from compressa.simulation import compare

    say(_headline(scenarios[0]))
    with Console(stderr=True).status("simulating"):
        results = list(compare(scenarios))
    Console().print(_table(results))
    for note in _notes(scenarios[0], results):
        say(note)
    return results


def _headline(scenario: Scenario) -> str:
    file, link = scenario.file, scenario.link
    measured = f"{file.ranks} rank{'s' if file.ranks > 1 else ''}"
    elems = sum(row.elems for row in file.parameters)
    waits = "the next forward" if scenario.overlap else "the end of backward"
    return (
        f"{scenario.hosts} hosts, {8e-6 * link.bytes_per_s:,.0f} Mbit/s of data each, latency "
        f"{1e6 * link.latency_s:,.0f} us; {elems:,} parameters, {scenario.compressor}; measured on "
        f"{measured}: {1e3 * file.step_s:,.2f} ms a step. Gradients are waited for in {waits}."
    )


def _table(results: Sequence[Simulated]) -> Table:
    titles = ("step ms", "ideal", "over it", "exposed", "link idle", "inversions", "ms")
    table = figures_table(["\npolicy"], [f"\n{title}" for title in titles])
    for one in results:
        table.add_row(
            one.policy,
            ms(one.step_s),
            ms(one.ideal_s),
            f"{one.step_s / one.ideal_s:.2f}" if one.ideal_s else "-",
            ms(one.exposed_s),
            ms(one.idle_s),
            f"{one.inversions:.4g}",
            ms(one.inverted_s),
        )
    return table


def _notes(scenario: Scenario, results: Sequence[Simulated]) -> list[str]:
    first = results[0]
    said = [
        f"F + B = {ms(first.compute_s)} ms, C = {ms(first.wire_s)} ms, {len(first.units)} units."
    ]
    if scenario.recompressed:
        said.append(
            "Encoding and decoding were not measured for this compression: they count as 0."
        )
    if scenario.overlap and not scenario.file.forward_s:
        said.append(
            "It was not measured when the forward uses what: it is taken to mirror backward."
        )
    return said


def _plain(one: Simulated) -> dict[str, Any]:
    figures = {name: value for name, value in vars(one).items() if name not in ("trace", "units")}
    units = [dataclasses.asdict(unit) for unit in one.units]
    return {**figures, "ideal_s": one.ideal_s, "idle_s": one.idle_s, "units": units}


def _write_figures(results: Sequence[Simulated], path: Path) -> None:
    try:
        path.write_text(json.dumps([_plain(one) for one in results], indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"--json: {path}: cannot be written: {error.strerror}") from error


def _write_traces(results: Sequence[Simulated], path: Path) -> None:
    from compressa.tracing import write

    for one in results:
        file = path.with_name(f"{path.stem}-{one.policy}{path.suffix or '.json'}")
        try:
            write(one.trace, file)
        except OSError as error:
            raise ConfigError(f"--trace: {file}: cannot be written: {error.strerror}") from error


def _bits_per_s(text: str) -> float:
    from compressa.testbed.link import LinkSpec

    link = LinkSpec.parse(text)
    if link.rate_bits_per_s is None or link.connection_bits_per_s or link.delay_ms:
        raise ConfigError(
            f'--bandwidth: give a rate such as "10gbit", not "{text}"; a delay is --latency'
        )
    return link.rate_bits_per_s


def _seconds(text: str) -> float:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ConfigError(f'--latency: give a time such as "50us" or "1.5ms", not "{text}"')
    return float(match[1]) * _SECONDS[match[2].lower()]
