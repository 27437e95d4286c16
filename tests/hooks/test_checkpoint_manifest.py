"""A manifest is as it was written, or refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressa import checkpoint
from compressa.errors import StateError
from compressa.parameters import ParameterInfo

PARAMETERS = [ParameterInfo(0, "layer.weight", (3, 4)), ParameterInfo(1, "layer.bias", (0,))]
DIGESTS = ["0123456789abcdef" * 4, "fedcba9876543210" * 4]
LINK = {"ranks": 2, "byte_s": 1e-9}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("checkpoint")
    checkpoint.write_manifest(folder, 41, DIGESTS, PARAMETERS, LINK)
    return folder, (folder / checkpoint.MANIFEST).read_bytes()


def read(folder: Path, data: bytes) -> checkpoint.Manifest:
    (folder / checkpoint.MANIFEST).write_bytes(data)
    return checkpoint.read_manifest(folder, PARAMETERS)


def forged(data: bytes, **changes: Any) -> bytes:
    """A manifest that says something else, with the checksum of that."""
    said = json.loads(data) | changes
    del said["checksum"]
    return json.dumps({"checksum": checkpoint._checksum(said), **said}).encode()


def test_what_is_written_is_read(written: tuple[Path, bytes]) -> None:
    manifest = read(*written)
    assert (manifest.step, manifest.ranks, manifest.link) == (41, 2, LINK)
    assert list(manifest.sha256) == DIGESTS
    assert read(written[0], forged(written[1])) == manifest


@given(data=st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(
    data: st.DataObject, written: tuple[Path, bytes]
) -> None:
    folder, text = written
    due, changed = read(folder, text), bytearray(text)
    changed[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(StateError):
        assert read(folder, bytes(changed)) == due  # such as another blank


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"step": -1}, "step"),
        ({"step": 1 << 63}, "step"),
        ({"step": 1.0}, "step"),
        ({"step": True}, "step"),
        ({"step": None}, "step"),
        ({"ranks": 0, "sha256": []}, "ranks"),
        ({"ranks": 3}, "one file for each rank"),
        ({"ranks": 1 << 40}, "ranks"),
        ({"sha256": ["../../etc/passwd", "0"]}, "sha256.0"),
        ({"sha256": [DIGESTS[0] + "\n", DIGESTS[1]]}, "sha256.0"),
        ({"link": 3}, "link"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"layer.weight": [-3]}}, "parameters.layer.weight.0"),
        ({"parameters": {"layer.weight": [3, 4], "layer.bias": [1]}}, "another model"),
        ({"format": 99}, "format"),
        ({"more": 1}, "more"),
    ],
)
def test_what_no_save_writes_is_refused(
    changes: dict[str, Any], place: str, written: tuple[Path, bytes]
) -> None:
    with pytest.raises(StateError) as caught:
        read(written[0], forged(written[1], **changes))
    assert place in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", "[[1, 2]]", "\x00", "[" * 100_000, '{"format": ' + "9" * 10_000]
)
def test_what_is_no_manifest_is_refused(text: str, written: tuple[Path, bytes]) -> None:
    with pytest.raises(StateError):
        read(written[0], text.encode())
