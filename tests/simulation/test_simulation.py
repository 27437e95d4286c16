"""Simulated steps agree with what is known of them otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from compressa.schedulers import POLICIES, Link, Profile, UnitTimes, predict
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import profile

from compressa.aggregators.base import Round, State, Verb, World
from compressa.collectives.algorithms import ALGORITHMS, segments_of
from compressa.collectives.cost import Link as CostLink
from compressa.compressors import COMPRESSORS
from compressa.engine.measuring.profile_file import ProfileFile
from compressa.engine.units.sums import Sums
from compressa.errors import ConfigError
from compressa.simulation import Scenario, Simulated, compare, simulate, simulated_step_s
from compressa.simulation.job import job_of
from compressa.simulation.network import Network
from compressa.simulation.phantoms import loads_of, phantom_program, rates_of
from compressa.simulation.simulate import run as run_job
from compressa.transports.frames import FRAME_HEADER_BYTES

BYTES_PER_S = 1e6
GATHERED = {"compressor": "int8", "exchange": {"kind": "all_gather"}}
IDEAL, SLOW = Link(1e15), Link(BYTES_PER_S)


def scenario(file: ProfileFile, link: Link, **more: Any) -> Scenario:
    return replace(Scenario.of(file, bandwidth_bits_per_s=1e9, **more), link=link)


def run(file: ProfileFile, link: Link = SLOW, **more: Any) -> Simulated:
    return simulate(scenario(file, link, **more))


# One wire


TIMES = st.floats(0, 0.5)


@st.composite
def equal_layers(draw: st.DrawFn) -> list[tuple[int, float, float]]:
    """Layers of one size: chunks of that size are whole messages, which `predict` cuts alike."""
    count = draw(st.integers(1, 6))
    # Of what is ready at the very same time, the clock sends the first that it hears of.
    ready = sorted(draw(st.sets(TIMES, min_size=count, max_size=count)), reverse=True)
    need = sorted(draw(TIMES) for _ in range(count))
    return [(20_000, r, n) for r, n in zip(ready, need, strict=True)]


@given(equal_layers(), st.sampled_from(["fifo", "priority", "credit"]), st.floats(0, 0.01))
def test_on_one_wire_it_is_what_schedulers_predict(
    layers: list[tuple[int, float, float]], policy: str, latency_s: float
) -> None:
    backward_s, forward_s = max(ready for _, ready, _ in layers), 0.5
    file = profile(layers, backward_s=backward_s, forward_s=forward_s, **GATHERED)
    size = job_of(scenario(file, Link(BYTES_PER_S))).units[0].rounds[0].capacity_bytes
    sizes = {"chunk_bytes": size, "credit_bytes": size}
    configuration = {**file.configuration}
    configuration["exchange"] = {**configuration["exchange"], **sizes}
    file = file.model_copy(update={"configuration": configuration})
    given_link = Link(BYTES_PER_S, latency_s)
    asked = scenario(file, given_link, policy=policy, overlap=True)
    job = job_of(asked)
    found = simulate(asked)

    wire = replace(given_link, overhead_s=FRAME_HEADER_BYTES / BYTES_PER_S)
    times = Profile(tuple(unit.times for unit in job.units), forward_s, backward_s)
    transfers = [
        transfer
        for index, unit in enumerate(job.units)
        for transfer in _timed(
            job.scenario.sums(job.network().ends[0]).transfers(index, unit.rounds), times
        )
    ]
    plan = replace(job.step_plan.plan, chunk_bytes=None, credit_bytes=None)
    predicted = predict(transfers, plan, wire, compute_s=times.step_s)
    assert found.step_s == pytest.approx(predicted.step_s, rel=1e-9)
    assert found.exposed_s == pytest.approx(predicted.exposed_s, abs=1e-9)
    assert found.wire_s == pytest.approx(predicted.wire_s)
    assert found.ideal_s == pytest.approx(predicted.ideal_s)


def _timed(transfers: list[Any], profile: Profile) -> list[Any]:
    unit = profile.units[transfers[0].unit]
    need_s = profile.backward_s + unit.need_s
    return [replace(each, ready_s=unit.ready_s, need_s=need_s) for each in transfers]


def test_a_step_worked_out_by_hand() -> None:
    """Two messages of 0.1 s each leave one after the other; backward waits for the second."""
    layers = [(90_000, 0.2, 0.0), (90_000, 0.15, 0.0)]
    file = profile(layers, backward_s=0.2, computing_s=0.3, **GATHERED)
    size = job_of(scenario(file, Link(BYTES_PER_S))).units[0].rounds[0].capacity_bytes
    found = run(file, Link((size + FRAME_HEADER_BYTES) / 0.1, latency_s=0.01))
    # Ready at 0.15; sent until 0.25 and 0.35; there at 0.36; then 0.1 s of all else.
    assert found.step_s == pytest.approx(0.46)
    assert found.exposed_s == pytest.approx(0.16)
    assert found.wire_s == pytest.approx(0.2)
    assert found.idle_s == pytest.approx(0.26)
    assert [unit.done_s for unit in found.units] == pytest.approx([0.26, 0.36])


def test_codecs_queue_for_their_threads() -> None:
    """Encoded one after the other, sent at once, decoded one after the other."""
    layers = [(1000, 0.0, 0.0), (1000, 0.0, 0.0)]
    units = {"l0": (0.1, 0.3), "l1": (0.1, 0.3)}
    one = profile(layers, backward_s=0.0, units=units, **GATHERED)
    found = run(one, IDEAL)
    assert found.step_s == pytest.approx(0.8)
    assert run(one.model_copy(update={"threads": 2}), IDEAL).step_s == pytest.approx(0.4)


def test_what_is_needed_first_goes_first_where_it_matters() -> None:
    """The first layer is ready last, and needed at once; communication takes as long as computing.

    By fifo the forward begins when all has come: B + C - (a layer) + F. By priority it waits for
    the first layer only, and the others come while it computes.
    """
    count, each_s = 10, 0.06
    layers = [(50_000, 0.4 * (count - i) / count, 0.2 * i / count) for i in range(count)]
    exchange = {"kind": "all_gather", "chunk_bytes": 10_000, "credit_bytes": 10_000}
    file = profile(layers, backward_s=0.4, forward_s=0.2, compressor="int8", exchange=exchange)
    size = job_of(scenario(file, Link(BYTES_PER_S))).units[0].rounds[0].capacity_bytes
    link = Link(size / each_s)
    fifo, priority = (run(file, link, policy=policy) for policy in ("fifo", "priority"))
    assert priority.ideal_s == pytest.approx(0.6, rel=0.01)
    assert fifo.step_s == pytest.approx(0.04 + count * each_s + 0.2, rel=0.01)
    assert priority.step_s < 1.2 * priority.ideal_s < fifo.step_s
    assert priority.inverted_s < fifo.inverted_s


@given(
    st.sampled_from([*POLICIES]),
    st.sampled_from(["none", "int8", "topk", "powersgd", "bf16"]),
    st.integers(1, 5),
    st.floats(1e4, 1e8),
    st.booleans(),
    st.floats(0, 0.3),
)
@settings(max_examples=30)
def test_no_step_is_shorter_than_the_ideal(
    policy: str, compressor: str, hosts: int, rate: float, overlap: bool, jitter: float
) -> None:
    layers = [(3000 * (1 + i % 3), 0.1 * (6 - i) / 6, 0.05 * i / 6) for i in range(6)]
    units = {f"l{i}": (0.001, 0.002) for i in range(6)}
    file = profile(layers, backward_s=0.1, forward_s=0.05, units=units, compressor=compressor)
    found = run(file, Link(rate, 1e-4, 1e-5), policy=policy, hosts=hosts, overlap=overlap)
    assert found.step_s >= found.ideal_s * (1 - 1e-9)
    # Parts of a sum differ in size by some bytes, and so ranks by some time.
    assert found.step_s == pytest.approx(found.compute_s + found.exposed_s, rel=0.01)
    varied = run(file, Link(rate, 1e-4), policy=policy, hosts=hosts, jitter=jitter, steps=3)
    assert varied.step_s >= varied.wire_s * (1 - 1e-9)


# Many hosts


@pytest.mark.parametrize("hosts", [2, 8, 16])
@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "round_robin", "tree"])
def test_sums_take_what_their_formulas_say(algorithm: str, hosts: int) -> None:
    elems, link = 1 << 16, Link(BYTES_PER_S, overhead_s=1e-3)
    exchange = {"algorithm": algorithm, "chunk_bytes": 4 * elems, "credit_bytes": 8 * elems}
    file = profile([(elems, 0.0, 0.0)], backward_s=0.0, compressor="none", exchange=exchange)
    formula = CostLink(link.overhead_s, 1 / link.bytes_per_s)
    assert segments_of(4 * elems, hosts) == 1
    expected_s = formula.time_s(ALGORITHMS[algorithm].stages(4 * elems, hosts))
    assert run(file, link, hosts=hosts).step_s == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize("hosts", [2, 5, 8])
def test_what_is_left_to_the_backend_takes_a_ring(hosts: int) -> None:
    elems = 1 << 20
    file = profile([(elems, 0.0, 0.0)], backward_s=0.0, compressor="none", backend_sums=True)
    expected_s = CostLink(0.0, 1 / BYTES_PER_S).time_s(ALGORITHMS["ring"].stages(4 * elems, hosts))
    found = run(file, hosts=hosts)
    assert found.step_s == pytest.approx(expected_s, rel=0.01)
    assert found.wire_s == pytest.approx(expected_s, rel=0.01)


@pytest.mark.parametrize("kind", ["all_gather", "scatter_reduce", "per_hop"])
def test_every_way_of_exchange_is_carried(kind: str) -> None:
    layers = [(40_000, 0.01, 0.01), (40_000, 0.0, 0.0)]
    config = {"compressor": "int8", "exchange": {"kind": kind}}
    file = profile(layers, backward_s=0.01, forward_s=0.02, **config)
    few, many = (run(file, hosts=hosts) for hosts in (2, 16))
    size = sum(r.capacity_bytes for u in job_of(scenario(file, IDEAL)).units for r in u.rounds)
    sent = {2: {"all_gather": 1.0}, 16: {"all_gather": 15.0}}
    for found, hosts in ((few, 2), (many, 16)):
        share = sent[hosts].get(kind, 2 * (hosts - 1) / hosts)
        assert found.wire_s == pytest.approx(share * size / BYTES_PER_S, rel=0.05)
    assert many.step_s > few.step_s


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_every_compressor_is_simulated(name: str) -> None:
    layers = [(400_000, 0.0, 0.0)] * 2
    file = profile(layers, backward_s=0.0, forward_s=0.1, compressor=name)
    asked = scenario(file, Link(BYTES_PER_S), hosts=4)
    job, found = job_of(asked), simulate(asked)
    sums = job.scenario.sums(job.network().ends[0])
    sent_bytes = sum(
        transfer.wire_bytes
        for index, unit in enumerate(job.units)
        for transfer in sums.transfers(index, unit.rounds)
    )
    # The root of a tree sends in one half of the exchanges, and receives in the other.
    share = found.wire_s / (sent_bytes / BYTES_PER_S)
    assert 0.45 < share < 1.2 if name == "gtopk" else 0.8 < share < 1.2


@pytest.mark.parametrize("hosts", [3, 8])
@pytest.mark.parametrize(
    ("compressor", "exchange"),
    [
        ("int8", {"kind": "all_gather"}),
        ("int8", {"kind": "scatter_reduce"}),
        ("int8", {"kind": "per_hop"}),
        ("none", {"algorithm": "backend"}),
        ("none", {"algorithm": "ring"}),
        ("none", {"algorithm": "halving_doubling"}),
        ("none", {"algorithm": "all_to_all"}),
    ],
)
def test_where_ranks_are_alike_one_of_them_tells_of_all(
    compressor: str, exchange: dict[str, Any], hosts: int
) -> None:
    layers = [(40_000, 0.1 * (5 - i) / 5, 0.05 * i / 5) for i in range(5)]
    units = {f"l{i}": (0.002, 0.003) for i in range(5)}
    file = profile(
        layers,
        backward_s=0.1,
        forward_s=0.05,
        units=units,
        backend_sums=True,
        compressor=compressor,
        exchange={**exchange, "chunk_bytes": 8000, "credit_bytes": 8000},
    )
    asked = scenario(file, Link(BYTES_PER_S, 1e-4, 1e-5), hosts=hosts, policy="priority")
    job = job_of(asked)
    paired = exchange in ({"kind": "per_hop"}, {"algorithm": "halving_doubling"})
    assert job.alike is (not paired or hosts in (2, 4, 8) or exchange == {"kind": "per_hop"})
    one, all_ = run_job(job), run_job(replace(job, alike=False))
    assert one.step_s == pytest.approx(all_.step_s, rel=0.01)
    assert one.wire_s == pytest.approx(all_.wire_s, rel=0.01)
    assert [unit.done_s for unit in one.units] == pytest.approx(
        [unit.done_s for unit in all_.units], rel=0.05
    )


def test_sums_go_as_where_they_ran_as_tables() -> None:
    large = Round(Verb.ALL_REDUCE, torch.float32, 4 << 20, dense=True)
    for lowers, name in ((False, "round_robin"), (True, "halving_doubling")):
        ends = Network(4, IDEAL, 0.0, backend=False, lowers=lowers).ends
        assert Sums(ends[0]).plan(large).name == name
    shape = {"backward_s": 0.0, "ranks": 4, "compressor": "none", "backend_sums": True}
    by_tables, by_backend = (
        profile([(1 << 20, 0.0, 0.0)], lowers=lowers, **shape) for lowers in (True, False)
    )
    assert run(by_tables, SLOW).step_s == pytest.approx(run(by_backend, SLOW).step_s, rel=0.05)


# Times of codecs


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "tree"])
@pytest.mark.parametrize("verb", list(Verb))
def test_the_parts_of_a_codecs_time_add_up_to_it(verb: Verb, algorithm: str) -> None:
    world = World(0, 4, 0, "auto", State())
    sums = Sums(Network(4, IDEAL, 0.0, backend=False).ends[0], algorithm)
    rounds = [Round(verb, torch.uint8, 100_000)]
    rates = rates_of(rounds, UnitTimes(encode_s=0.3, decode_s=0.7), world, sums)
    loads = loads_of(phantom_program(rounds, world, sums))
    assert rates["encode"] * loads["encode"] == pytest.approx(0.3)
    assert rates["decode"] * loads["decode"] == pytest.approx(0.7)


def test_on_as_many_hosts_codecs_take_what_was_measured_and_on_more_they_decode_more() -> None:
    file = profile([(50_000, 0.0, 0.0)], backward_s=0.0, units={"l0": (0.2, 0.4)}, **GATHERED)
    assert run(file, IDEAL).step_s == pytest.approx(0.6)
    assert run(file, IDEAL, hosts=6).step_s == pytest.approx(0.2 + 3 * 0.4)


# Conditions


def test_the_same_seed_gives_the_same_step_and_another_one_another() -> None:
    layers = [(5000, 0.1 * (4 - i) / 4, 0.05 * i / 4) for i in range(4)]
    file = profile(layers, backward_s=0.1, forward_s=0.05, **GATHERED)
    first, again, other = (run(file, hosts=4, jitter=0.2, steps=4, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.step_s != other.step_s


def test_an_unmeasured_forward_mirrors_backward() -> None:
    layers = [(20_000, 0.1, 0.0), (20_000, 0.05, 0.0)]
    file = profile(layers, backward_s=0.1, computing_s=0.16, **GATHERED)
    assert not Scenario.of(file, bandwidth_bits_per_s=1e6).overlap
    job = job_of(scenario(file, Link(BYTES_PER_S), overlap=True))
    assert job.forward_s == pytest.approx(0.06)
    assert [unit.times.need_s for unit in job.units] == pytest.approx([0.03, 0.0])
    assert job.compute_s == pytest.approx(0.16)


def test_a_forward_that_was_slow_when_measured_is_as_long_as_there_is_time_for() -> None:
    layers = [(20_000, 0.1, 0.0), (20_000, 0.05, 0.06)]
    file = profile(layers, backward_s=0.1, forward_s=0.08, computing_s=0.14, **GATHERED)
    job = job_of(scenario(file, IDEAL))
    assert job.forward_s == pytest.approx(0.04)
    assert job.compute_s == pytest.approx(0.14)
    assert [unit.times.need_s for unit in job.units] == pytest.approx([0.03, 0.0])


def test_another_compression_has_its_own_exchanges_and_no_codec_times() -> None:
    layers = [(20_000, 0.1, 0.0), (20_000, 0.05, 0.0)]
    units = {"l0": (0.1, 0.1), "l1": (0.1, 0.1)}
    file = profile(layers, backward_s=0.1, units=units, compressor="none")
    dense = run(file)
    small = run(file, compression={"compressor": "int8"})
    assert small.wire_s < 0.4 * dense.wire_s
    job = job_of(scenario(file, IDEAL, compression={"compressor": "int8"}))
    assert all(unit.times.encode_s == unit.times.decode_s == 0 for unit in job.units)
    assert [unit.times.ready_s for unit in job.units] == [0.05, 0.1]


def test_units_are_as_the_policy_wants_them_and_codecs_take_as_long_in_all() -> None:
    layers = [(1 << 20, 0.1 * (3 - i), 0.0) for i in range(3)]
    units = {f"l{i}": (0.1, 0.2) for i in range(3)}
    exchange = {"unit_bytes": None, "unit_dense_bytes": None, "unit_payload_bytes": 1}
    file = profile(layers, backward_s=0.3, units=units, compressor="int8", exchange=exchange)
    assert [unit.name for unit in job_of(scenario(file, IDEAL)).units] == ["l2", "l1", "l0"]
    small = [unit.times for unit in job_of(scenario(file, IDEAL, policy="priority")).units]
    assert 9 <= len(small) <= 16
    assert sum(times.encode_s for times in small) == pytest.approx(0.3)
    assert sum(times.decode_s for times in small) == pytest.approx(0.6)
    assert {times.ready_s for times in small} == {ready for _, ready, _ in layers}
    others = [(3 << 18, ready, need) for _, ready, need in layers]
    given = profile(others, backward_s=0.3, units=units, compressor="int8")
    assert len(job_of(scenario(given, IDEAL, policy="priority")).units) == 3


def test_policies_with_the_same_plan_are_run_once_and_each_has_its_name() -> None:
    file = profile([(5000, 0.1, 0.0), (5000, 0.05, 0.01)], backward_s=0.1, forward_s=0.05)
    asked = [scenario(file, Link(BYTES_PER_S), policy=name) for name in POLICIES]
    found = list(compare(asked))
    assert [one.policy for one in found] == [*POLICIES]
    assert [one.step_s for one in found] == [simulate(one).step_s for one in asked]


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({}, "how fast its network was"),
        ({"bandwidth_bits_per_s": 0.0}, "no bandwidth"),
        ({"bandwidth_bits_per_s": 1e9, "hosts": 0}, "can not be simulated"),
        ({"bandwidth_bits_per_s": 1e9, "hosts": 1 << 20}, "can not be simulated"),
        ({"bandwidth_bits_per_s": 1e9, "policy": "best"}, 'schedule.policy: "best" is not'),
        ({"bandwidth_bits_per_s": 1e9, "steps": 1}, "2 steps at least"),
        ({"bandwidth_bits_per_s": 1e9, "compression": {"compressor": "?"}}, "compressor"),
    ],
)
def test_what_can_not_be_simulated_is_refused(conditions: dict[str, Any], message: str) -> None:
    file = profile([(10, 0.0, 0.0)], backward_s=0.0)
    with pytest.raises(ConfigError, match=message):
        simulated_step_s(file, **conditions)
