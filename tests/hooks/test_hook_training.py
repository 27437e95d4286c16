"""Training through the hook on real ranks: every compressor, transport, policy and model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from _ranks import Group, same, settings
from _training import train, train_plain
from _transports import ON_HOST

from compressa.collectives.algorithms import ALGORITHMS
from compressa.collectives.base import Exchange
from compressa.compressors import COMPRESSORS
from compressa.engine.start import startup
from compressa.engine.start.cores import own_host
from compressa.transports.tcp import TcpTransport

pytestmark = pytest.mark.ranks

KINDS = ["none", "int8", "topk", "dgc", "powersgd", "thc"]  # one of each kind of exchange


def train_on_hosts(*, hosts: list[str], **options: Any) -> dict[str, Any]:
    """Train as if each rank were on the host that is named for it; say who heard from whom."""
    own, rank = own_host(), dist.get_rank()
    heard: set[int] = set()
    exchange = TcpTransport.exchange

    def noted(self: Any, key: Any, operation: Exchange, *rest: Any) -> None:
        of_data = self.epoch != startup._CONTROL_EPOCH
        if of_data and any(buffer.numel() for buffer in operation.incoming.values()):
            heard.update(operation.incoming)
        exchange(self, key, operation, *rest)

    host = replace(own, network=hosts[rank])
    with (
        mock.patch.object(startup, "own_host", return_value=host),
        mock.patch.object(TcpTransport, "exchange", noted),
    ):
        return train(**options) | {"heard": sorted(heard)}


def check_run(results: list[dict[str, Any]], steps: int) -> None:
    """Replicas agree bit for bit, numbers are finite, and the statistics add up."""
    same([result["parameters"] for result in results])
    for result in results:
        stats = result["stats"]
        assert result["finite"]
        assert all(map(math.isfinite, result["losses"]))
        assert stats["steps"] == steps
        assert stats["sent_bytes"] > 0
        assert stats["messages"] > 0
        assert sum(stats["compressors"].values()) == stats["payload_bytes"]
        assert stats["ratio"] == stats["dense_bytes"] / stats["payload_bytes"]
        assert stats["codec_s"] > 0
        assert stats["exposed_s"] > 0
        assert stats["wire_s"] > 0


@pytest.mark.parametrize("transport", ON_HOST)
@pytest.mark.parametrize("compressor", KINDS)
def test_every_kind_of_exchange_trains_and_replicas_stay_identical(
    compressor: str, transport: str, four: Group
) -> None:
    config = settings(compressor, exchange={"transport": transport})
    check_run(four.run(train, config=config, steps=4), steps=4)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "hierarchical"])
def test_sums_by_any_algorithm_train_and_replicas_stay_identical(
    algorithm: str, four: Group
) -> None:
    for compressor, transport in (("none", "tcp"), ("powersgd", "gloo-group")):
        exchange = {"transport": transport, "algorithm": algorithm}
        config = settings(compressor, exchange=exchange)
        check_run(four.run(train, config=config, steps=3), steps=3)


@pytest.mark.parametrize(
    ("hosts", "heard"),
    [
        ("aabb", [[1, 2], [0, 3], [0, 3], [1, 2]]),
        ("abab", [[1, 2], [0, 3], [0, 3], [1, 2]]),
        ("aaab", [[1, 2, 3], [0], [0], [0]]),
    ],
)
def test_a_hierarchy_crosses_between_hosts_by_few_ranks(
    hosts: str, heard: list[list[int]], four: Group
) -> None:
    config = settings("none", exchange={"transport": "tcp", "algorithm": "hierarchical"})
    options = {"hosts": list(hosts), "config": config, "steps": 2}
    results = four.run(train_on_hosts, **options)
    check_run(results, steps=2)
    assert [result["heard"] for result in results] == heard


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_sums_that_are_encoded_at_every_hop_train(algorithm: str, four: Group) -> None:
    exchange = {"transport": "tcp", "kind": "per_hop", "algorithm": algorithm}
    config = settings("int8", exchange=exchange)
    results = four.run(train, config=config, steps=40, lr=0.1)
    check_run(results, steps=40)
    losses = results[0]["losses"]
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10])


def test_what_crosses_between_hosts_is_encoded_and_what_does_not_is_dense(four: Group) -> None:
    def sent_bytes(compressor: str, inside: str = "none", kind: str = "per_hop") -> int:
        exchange = {"transport": "tcp", "algorithm": "hierarchical", "kind": kind, "inside": inside}
        options = {"hosts": list("abab"), "config": settings(compressor, exchange=exchange)}
        results = four.run(train_on_hosts, steps=2, **options)
        check_run(results, steps=2)
        assert [result["heard"] for result in results] == [[1, 2], [0, 3], [0, 3], [1, 2]]
        return int(results[0]["stats"]["sent_bytes"])

    dense, across, both = sent_bytes("none"), sent_bytes("int4"), sent_bytes("int4", "bf16")
    # Dense: of n bytes, n inside and n / 2 across. Then n / 2 is an eighth, then n is a half.
    assert 0.6 < across / dense < 0.8
    assert 0.3 < both / dense < 0.5


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_every_compressor_learns_on_two_ranks(compressor: str, two: Group) -> None:
    config = settings(compressor, schedule={"policy": "priority"})
    lr = 0.001 if compressor == "signsgd" else 0.1  # every element moves by as much
    steps = 60 if compressor == "demo" else 40  # at most 32 elements of a tile leave at a time
    results = two.run(train, config=config, steps=steps, lr=lr)
    check_run(results, steps=steps)
    losses, ratio = results[0]["losses"], results[0]["stats"]["ratio"]
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10])
    assert ratio == 1.0 if compressor == "none" else ratio > 1.5


@pytest.mark.parametrize(
    ("compressor", "transport"),
    [("topk", "gloo-group"), ("int8", "tcp"), ("powersgd", "gloo-group")],
)
def test_transport_and_schedule_change_no_bit(compressor: str, transport: str, four: Group) -> None:
    configs = [
        settings(compressor),
        settings(compressor, exchange={"transport": transport}, schedule={"policy": "priority"}),
    ]
    runs = [four.run(train, config=config, steps=3)[0] for config in configs]
    assert runs[0]["parameters"] == runs[1]["parameters"]
    assert runs[0]["state"] == runs[1]["state"]


@pytest.mark.parametrize(
    ("model", "compressor"),
    [
        ("cnn", "powersgd"),
        ("transformer", "topk"),
        ("transformer", "powersgd"),
        ("scaled", "int8"),
        ("frozen_mlp", "topk"),
        ("normed_cnn", "int8"),
    ],
)
def test_every_kind_of_model_trains(model: str, compressor: str, two: Group) -> None:
    results = two.run(train, config=settings(compressor), model=model, steps=3)
    check_run(results, steps=3)


@pytest.mark.parametrize(
    ("dtype", "compressor"),
    [("float16", "int8"), ("bfloat16", "topk"), ("bfloat16", "none"), ("float64", "powersgd")],
)
def test_parameters_of_other_dtypes_train(dtype: str, compressor: str, two: Group) -> None:
    results = two.run(train, config=settings(compressor), model=dtype, steps=3)
    check_run(results, steps=3)


@pytest.mark.parametrize("compressor", ["powersgd", "onebit"])
def test_three_ranks_share_out_what_does_not_divide(compressor: str, fresh: Any) -> None:
    results = fresh(3).run(train, config=settings(compressor), steps=3)
    check_run(results, steps=3)


@pytest.mark.parametrize(
    "model", ["mlp", "cnn", "float64", "float16", "normed_cnn", "complex64", "complex128"]
)
def test_no_compression_equals_plain_ddp_bit_for_bit(model: str, two: Group) -> None:
    plain = two.run(train_plain, model=model, steps=4)
    hooked = two.run(train, config=settings("none"), model=model, steps=4)
    assert same([r["parameters"] for r in plain]) == same([r["parameters"] for r in hooked])


@pytest.mark.parametrize("compressor", KINDS)
def test_complex_parameters_train_and_replicas_stay_identical(compressor: str, two: Group) -> None:
    config = settings(compressor, dense_below={"elems": 0})
    results = two.run(train, config=config, model="complex64", steps=3)
    check_run(results, steps=3)


def test_large_units_summed_by_the_backend_equal_plain_ddp(two: Group) -> None:
    config = settings("none", exchange={"unit_bytes": 1 << 22})
    plain = two.run(train_plain, model="wide", steps=2)
    hooked = two.run(train, config=config, model="wide", steps=2)
    assert plain[0]["parameters"] == same([r["parameters"] for r in hooked])


@pytest.mark.parametrize("compressor", ["topk", "int8", "powersgd"])
def test_buckets_change_no_bit(compressor: str, four: Group) -> None:
    config = settings(compressor)
    runs = [
        four.run(train, config=config, steps=3, ddp={"bucket_cap_mb": cap})[0]
        for cap in (25, 0.005)
    ]
    assert runs[0]["parameters"] == runs[1]["parameters"]
    assert runs[0]["state"] == runs[1]["state"]


def test_codec_threads_change_no_bit(two: Group) -> None:
    runs = [
        two.run(train, config=settings("int8", engine={"threads": n}), steps=3)[0] for n in (1, 3)
    ]
    assert runs[0]["parameters"] == runs[1]["parameters"]


def test_the_seed_decides_random_bits(two: Group) -> None:
    runs = [
        two.run(train, config=settings("randomk", engine={"seed": seed}), steps=2)[0]
        for seed in (1, 1, 2)
    ]
    assert runs[0]["parameters"] == runs[1]["parameters"] != runs[2]["parameters"]
