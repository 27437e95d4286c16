"""Keys on servers: every value once, evenly by bytes; who serves; what is refused beforehand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compressa.config import load_config
from compressa.errors import ConfigError
from compressa.parameter_server.job import Job, assign_roles, plan_job
from compressa.parameter_server.keys import MOST_SHARDS, SHARD_BYTES, Shard
from compressa.parameter_server.protocol import Kind, Request, Units, unwrapped

COMPRESSORS: list[dict[str, Any]] = [
    {"name": "none"},
    {"name": "int8"},
    {"name": "onebit"},
    {"name": "topk", "density": 0.1},
]
KEYS = {"w": (300, 40), "b": (40,)}


def job_of(
    keys: dict[str, tuple[int, ...]],
    servers: int,
    compressor: dict[str, Any],
    least_bytes: int = 1,
    **sections: Any,
) -> Job:
    exchange = {"unit_payload_bytes": least_bytes}
    config = {"compressor": compressor, "dense_below": {"elems": 100}, "exchange": exchange}
    roles = assign_roles(servers + 1, servers, colocated=False)
    return plan_job(load_config(config | sections), keys, roles)


def bytes_of(job: Job, shard: Shard) -> int:
    whole = shard.segment.elems == shard.segment.parameter.elems
    shape = shard.segment.parameter.shape if whole else (shard.segment.elems,)
    return job.table.codings[shard.key].compressor.payload_bytes(shape)


@given(
    elems=st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    servers=st.integers(1, 9),
    compressor=st.sampled_from(COMPRESSORS),
    least_bytes=st.sampled_from([1, 500, 4000]),
)
def test_every_value_is_at_one_server_and_servers_have_equal_bytes(
    elems: list[int], servers: int, compressor: dict[str, Any], least_bytes: int
) -> None:
    keys = {f"key {i}": (n,) for i, n in enumerate(elems)}
    job = job_of(keys, servers, compressor, least_bytes)
    loads, most = [0] * servers, 0
    for key, shards in enumerate(job.table.by_key):
        assert shards[0].segment.start == 0
        assert shards[-1].segment.stop == elems[key]
        for a, b in itertools.pairwise(shards):
            assert a.segment.stop == b.segment.start
            assert a.segment.stop % job.table.codings[key].compressor.block_elems == 0
        assert len({shard.server for shard in shards}) == len(shards)
        sizes = [bytes_of(job, shard) for shard in shards]
        for shard, size in zip(shards, sizes, strict=True):
            loads[shard.server] += size
        # All servers have a part, and so differ by the largest's lead over the smallest only.
        most = max(most, max(sizes) - (min(sizes) if len(sizes) == servers else 0))
        assert len(sizes) == 1 or min(sizes) >= least_bytes // 2
    assert max(loads) - min(loads) <= most
    assert [shard.number for shard in job.table.shards] == list(range(len(job.table.shards)))


def test_a_large_key_is_at_all_servers_but_for_what_can_not_be_cut() -> None:
    keys = {"large": (1 << 16,), "small": (100,)}
    for compressor in COMPRESSORS:
        large = job_of(keys, 4, compressor, 1 << 10).table.by_key[0]
        assert len(large) == (1 if compressor["name"] == "topk" else 4)
        assert len(job_of(keys, 4, compressor, 1 << 10).table.by_key[1]) == 1


@given(
    elems=st.integers(1, 5_000_000),
    servers=st.integers(1, 5),
    compressor=st.sampled_from(COMPRESSORS),
)
def test_a_servers_part_is_cut_by_its_size_alone(
    elems: int, servers: int, compressor: dict[str, Any]
) -> None:
    job = job_of({"x": (elems,)}, servers, compressor, 1 << 10)
    (shards,) = job.table.by_key
    assert [shard.segment.start for shard in shards[1:]] == [s.segment.stop for s in shards[:-1]]
    assert (shards[0].segment.start, shards[-1].segment.stop) == (0, elems)
    block = job.table.codings[0].compressor.block_elems
    for server in {shard.server for shard in shards}:
        own = [shard for shard in shards if shard.server == server]
        assert [shard.index for shard in own] == list(range(len(own)))
        sizes = [bytes_of(job, shard) for shard in own]
        assert len(own) <= MOST_SHARDS
        assert len(own) == 1 or min(sizes) >= SHARD_BYTES / 2
        cuttable = compressor["name"] != "topk" and len(own) < MOST_SHARDS
        assert not cuttable or max(sizes) <= 2 * SHARD_BYTES + 8 * block
        lengths = [shard.segment.elems for shard in own]
        assert max(lengths) - min(lengths) <= 2 * block


@given(size=st.integers(1, 12), servers=st.integers(1, 12), colocated=st.booleans())
def test_ranks_are_workers_or_servers_or_both(size: int, servers: int, colocated: bool) -> None:
    if servers > size or (servers == size and not colocated):
        with pytest.raises(ConfigError, match="servers"):
            assign_roles(size, servers, colocated=colocated)
        return
    roles = assign_roles(size, servers, colocated=colocated)
    assert roles.servers == tuple(range(size - servers, size))
    assert roles == assign_roles(size, list(roles.servers), colocated=colocated)
    assert set(roles.workers) | set(roles.servers) == set(range(size))
    assert colocated == bool(set(roles.workers) & set(roles.servers))
    assert [roles.worker_at(rank) for rank in roles.workers] == list(range(len(roles.workers)))
    assert [roles.server_at(rank) for rank in range(size)].count(None) == size - servers


@given(
    shards=st.integers(1, 5),
    workers=st.integers(1, 5),
    servers=st.integers(1, 5),
    requests=st.integers(1, 4),
)
def test_no_two_messages_have_the_same_name(
    shards: int, workers: int, servers: int, requests: int
) -> None:
    units = Units(shards, workers, servers)
    parts = [Shard(i, i, i % servers, None) for i in range(shards)]  # type: ignore[arg-type]
    names = [units.push(part) for part in parts]
    names += [units.answer(part, worker) for part in parts for worker in range(workers)]
    names += [
        units.request(worker, server, number)
        for worker in range(workers)
        for server in range(servers)
        for number in range(requests)
    ]
    assert len(set(names)) == len(names)
    assert units.request(workers - 1, servers - 1, 2**40) < 2**32


@given(
    kind=st.sampled_from(Kind),
    step=st.integers(0, 2**34),
    keys=st.lists(st.integers(0, 2**32 - 1), max_size=5),
)
def test_a_request_is_read_as_it_was_written(kind: Kind, step: int, keys: list[int]) -> None:
    request = Request(kind, 3, step, tuple(keys))
    read = Request.read(request.written(), 3, 0)
    assert (read.kind, read.keys, unwrapped(read.step, step + 5)) == (kind, tuple(keys), step)


@pytest.mark.parametrize(
    ("compressor", "sections", "fix"),
    [
        ({"name": "powersgd", "approx_rank": 2}, {}, "choose a codec"),
        ({"name": "int8"}, {"feedback": {"kind": "ef21"}}, "choose a codec"),
        ({"name": "topk", "density": 0.1}, {"momentum": {"factor": 0.9}}, "no momentum"),
        ({"name": "int8"}, {"warmup": {"steps": 3}}, "leave warmup out"),
        ({"name": "int8"}, {"exchange": {"transport": "nccl"}}, 'use "auto"'),
        ({"name": "int8"}, {"exchange": {"kind": "all_gather"}}, "leave both out"),
        ({"name": "none"}, {"exchange": {"algorithm": "ring"}}, "leave both out"),
        ({"name": "none"}, {"engine": {"device": "cuda"}}, "leave it out"),
    ],
)
def test_what_a_server_can_not_do_is_refused(
    compressor: dict[str, Any], sections: dict[str, Any], fix: str
) -> None:
    with pytest.raises(ConfigError, match=fix):
        job_of(KEYS, 1, compressor, **sections)


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        ({}, "at least one"),
        ({"w": (3, 0)}, "leave it out"),
        ({"w": torch.zeros(3, dtype=torch.float64)}, "convert"),
    ],
)
def test_keys_that_can_not_be_kept_are_refused(keys: Any, fix: str) -> None:
    with pytest.raises(ConfigError, match=fix):
        job_of(keys, 1, {"name": "none"})
