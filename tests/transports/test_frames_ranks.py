"""No wrong byte passes in silence: what a network changes ends the step on every rank."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from _proxy import Change, between
from _rank_models import build, loss_of
from _ranks import Group, Pools, settings
from _training import _optimizer, digest, registered
from _transports import AUTHENTICATED
from compressa.kernels.checksums import checksum
from torch.nn.parallel import DistributedDataParallel

import compressa
from compressa.transports.frames import Frame

pytestmark = pytest.mark.ranks

WAY = "from rank 0 to rank 1 over tcp"


_WORD = struct.Struct("<I")
_STEP_AT, _EPOCH_AT = 8, 4


def _intact(header: bytes, data: bytes) -> bytes:
    return header + data


def _flipped(header: bytes, data: bytes) -> bytes:
    """One bit of the middle of the data is another."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x10
    return header + changed


def _forged(header: bytes, data: bytes) -> bytes:
    """Another bit, and checksums that fit it: what somebody does who knows the format."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 0x10
    front = header[:32] + checksum(np.frombuffer(changed, np.uint8)).to_bytes(8, "little")
    whole = checksum(np.frombuffer(bytearray(front), np.uint8)).to_bytes(8, "little")
    return front + whole + bytes(changed)


def _half(header: bytes, data: bytes) -> bytes:
    """The second half of the frame is inverted."""
    whole = bytearray(header + data)
    middle = len(whole) // 2
    whole[middle:] = bytes(byte ^ 0xFF for byte in whole[middle:])
    return bytes(whole)


CHANGES: dict[str, Change] = {
    "flip": _flipped,
    "half": _half,
    "forge": _forged,
    "repeat": lambda header, data: 2 * (header + data),
    "leave out": lambda header, data: b"",
}


def _once(change: Change, step: int) -> Change:
    """Change the first frame of a step, and nothing else; epoch 0 is the control channel's."""
    left = [change]

    def changed(header: bytes, data: bytes) -> bytes:
        epoch, at = (_WORD.unpack_from(header, at_byte)[0] for at_byte in (_EPOCH_AT, _STEP_AT))
        due = epoch and at >= step and len(data) > 0
        return left.pop()(header, data) if left and due else header + data

    return changed


@contextlib.contextmanager
def _proxied(change: Change) -> Iterator[None]:
    """Rank 1 calls rank 0 through a proxy that changes what comes from rank 0."""
    with between(_intact, change) if dist.get_rank() == 1 else contextlib.nullcontext():
        yield


def _trained(config: Any, steps: int) -> dict[str, Any]:
    """Train up to an error; return it, and what the replica ended with."""
    rank, net = dist.get_rank(), build("mlp", dist.get_rank())
    with registered(net, config) as (wrapped, _):
        optimizer = _optimizer(net)
        started_s = time.monotonic()
        for step in range(steps):
            optimizer.zero_grad()
            try:
                loss_of(wrapped, rank, step, torch.float32).backward()
            except compressa.CompressaError as error:
                seconds = time.monotonic() - started_s
                return {
                    "type": type(error).__name__,
                    "message": str(error),
                    "step": step,
                    "seconds": seconds,
                    "parameters": digest(net),
                }
            optimizer.step()
    return {"type": "", "message": "", "step": steps, "parameters": digest(net)}


def train_over_a_bad_link(*, config: Any, how: str, at: int = 2, steps: int = 6) -> dict[str, Any]:
    """Train while a frame of one step is changed on its way from rank 0 to rank 1."""
    with _proxied(_once(CHANGES[how], at)):
        return _trained(config, steps)


def register_with_few_files(*, config: Any, culprits: list[int], spare: int) -> dict[str, Any]:
    """Register while the culprits may open so many more files; return the error, and the limit."""
    used = len(os.listdir("/proc/self/fd"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wrapped = DistributedDataParallel(build("mlp", 0))
    if dist.get_rank() in culprits:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, before[1]))
    started_s = time.monotonic()
    try:
        compressa.register_comm_hook(wrapped, config).close()
    except Exception as error:
        seconds = time.monotonic() - started_s
        return {
            "type": type(error).__name__,
            "message": str(error),
            "seconds": seconds,
            "limit": used + spare,
            "used": used,
        }
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return {"type": "", "used": used}


def count_files(*, config: Any) -> int:
    before = len(os.listdir("/proc/self/fd"))
    wrapped = DistributedDataParallel(build("mlp", 0))
    handle = compressa.register_comm_hook(wrapped, config)
    after = len(os.listdir("/proc/self/fd"))
    handle.close()
    return after - before


def train_with_a_secret(
    *,
    config: Any,
    folder: str,
    how: str = "",
    own: bool = False,
    steps: int = 6,
) -> dict[str, Any]:
    """As `train_over_a_bad_link`, with authenticated frames; `own`: rank 1's secret is another."""
    other = own and dist.get_rank() == 1
    home = Path(folder) / str(dist.get_rank())
    home.mkdir(exist_ok=True)
    path = home / "secret"
    path.write_bytes(b"another secret of some length" if other else 32 * b"s")
    path.chmod(0o600)
    known = {**config["exchange"], "authenticate": True, "secret_file": "secret"}
    change = _once(CHANGES[how], 2) if how else _intact
    with contextlib.chdir(home), _proxied(change):
        try:
            return _trained({**config, "exchange": known}, steps)
        except compressa.CompressaError as error:  # at registration
            return {"type": type(error).__name__, "message": str(error), "step": -1}


def train_with_a_bad_sender(*, config: Any, steps: int = 6) -> dict[str, Any]:
    """Train while rank 0 sends one frame of step 2 whose data is not what its check is of."""
    write, left = Frame.write, [1]

    def broken(self: Frame, buffer: Any, data: memoryview, *check: Any) -> None:
        changed = bytearray(data)
        if self.epoch and self.key.step >= 2 and data and left:  # epoch 0 is the control channel's
            changed[left.pop()] ^= 1
        write(self, buffer, memoryview(changed), *check)

    with mock.patch.object(Frame, "write", broken if dist.get_rank() == 0 else write):
        return _trained(config, steps)


def check_refused(found: list[dict[str, Any]], way: str = WAY) -> None:
    for rank, seen in enumerate(found):
        assert seen["type"] == "PayloadError", found
        assert way in seen["message"], found
        # Who finds it out may be a step behind what comes; others may be a step ahead of it.
        assert seen["step"] in ((1, 2) if rank == 1 else (1, 2, 3)), found
        assert seen["seconds"] < 10.0, found


@pytest.mark.parametrize(("compressor", "size"), [("topk", 2), ("none", 2), ("int8", 4)])
def test_a_flipped_bit_ends_the_step_on_all_ranks(compressor: str, size: int, pools: Pools) -> None:
    found = pools.get(size).run(train_over_a_bad_link, config=settings(compressor), how="flip")
    check_refused(found)


def test_half_a_frame_inverted_ends_the_step_on_both_ranks(two: Group) -> None:
    config = settings("none", exchange={"connections": 3})
    check_refused(two.run(train_over_a_bad_link, config=config, how="half"))


def test_data_that_its_check_is_not_of_is_refused_in_group_calls_too(two: Group) -> None:
    config = settings("int8", exchange={"transport": "gloo-group"})
    found = two.run(train_with_a_bad_sender, config=config)
    check_refused(found, "from rank 0 to rank 1 over gloo-group ")


def test_a_proxy_that_changes_nothing_is_not_noticed(two: Group) -> None:
    found = two.run(train_over_a_bad_link, config=settings("int8"), how="flip", at=99)
    assert [seen["type"] for seen in found] == ["", ""]
    assert found[0]["parameters"] == found[1]["parameters"]


@pytest.mark.parametrize("culprits", [[1], [0, 1, 2]])
def test_too_few_files_are_told_to_all_ranks_with_the_fix(
    culprits: list[int], fresh: Callable[[int], Group]
) -> None:
    config = settings("int8", exchange={"deadline_s": 20.0})
    for seen in fresh(3).run(register_with_few_files, config=config, culprits=culprits, spare=16):
        assert seen["type"] == "TransportError", seen
        assert re.search(
            r"this process may open \d+ files, has \d+ and needs 21 more", seen["message"]
        )
        assert "ulimit -n" in seen["message"]
        assert seen["seconds"] < 10.0


def test_as_many_files_as_are_said_to_be_needed_are_enough(fresh: Callable[[int], Group]) -> None:
    found = fresh(3).run(
        register_with_few_files, config=settings("int8"), culprits=[0, 1, 2], spare=21
    )
    assert [seen["type"] for seen in found] == [""] * 3


@pytest.mark.parametrize("compressor", ["int8", "none"])
@pytest.mark.parametrize("transport", AUTHENTICATED)
def test_authenticated_training_has_the_same_bits(
    compressor: str, transport: str, two: Group, tmp_path: Path
) -> None:
    config = settings(compressor, exchange={"transport": transport, "algorithm": "round_robin"})
    plain = two.run(train_over_a_bad_link, config=config, how="flip", at=99)
    found = two.run(train_with_a_secret, config=config, folder=str(tmp_path))
    assert found == plain
    assert [seen["type"] for seen in found] == ["", ""]


@pytest.mark.parametrize(
    ("how", "connections"), [("forge", 1), ("repeat", 2), ("leave out", 1), ("leave out", 2)]
)
def test_what_is_not_authentic_ends_the_step_on_both_ranks(
    how: str, connections: int, two: Group, tmp_path: Path
) -> None:
    config = settings("int8", exchange={"connections": connections, "deadline_s": 8.0})
    found = two.run(train_with_a_secret, config=config, folder=str(tmp_path), how=how)
    check_refused(found)
    assert "is not authentic" in found[0]["message"]


def test_a_forged_frame_needs_a_secret_to_be_found_out(two: Group) -> None:
    """The proxy's forgery is a good one: without a secret only a comparison of replicas tells."""
    found = two.run(
        train_over_a_bad_link, config=settings("int8", integrity={"every": 0}), how="forge"
    )
    assert [seen["type"] for seen in found] == ["", ""]
    assert found[0]["parameters"] != found[1]["parameters"]


def test_ranks_with_different_secrets_do_not_begin(
    fresh: Callable[[int], Group], tmp_path: Path
) -> None:
    """Neither believes the other's goodbye: their threads end after the silence only."""
    how: dict[str, Any] = {"folder": str(tmp_path), "own": True}
    for seen in fresh(2).run(train_with_a_secret, config=settings("int8"), **how):
        assert seen["type"] == "PayloadError", seen
        assert "different secrets" in seen["message"], seen
        assert seen["step"] == -1
