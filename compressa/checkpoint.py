"""Checkpoints of residuals and factors: one file per rank and a manifest.

    <path>/manifest.json                              what was saved: a SHA-256 for every rank
    <path>/rank-00000-0123456789abcdef.safetensors    rank 0's state, named by its SHA-256
    ...

A later save to the same folder writes beside the earlier one, replaces the manifest when all of it
is there, and only then removes what the manifest no longer names: at any time the folder holds one
complete checkpoint.

Residuals are rank-local: a checkpoint is complete only with every rank's file. The files hold
tensors and JSON only, nothing that runs code when it is read. Another number of ranks reads
all files and redistributes: e'_j = (P'/P) times the sum of the e_i mapped to j, which keeps
(1/P) sum_i e_i.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from compressa.aggregators import narrow
from compressa.aggregators.base import Merge, State
from compressa.errors import StateError
from compressa.parameters import ParameterInfo

FORMAT = 1
MANIFEST = "manifest.json"
_SHA256 = re.compile("[0-9a-f]{64}")


def rank_file(rank: int, digest: str) -> str:
    """Return the name of a rank's file with this SHA-256."""
    return f"rank-{rank:05d}-{digest[:16]}.safetensors"


def layout_of(parameters: Sequence[ParameterInfo]) -> dict[str, list[int]]:
    """Return what identifies a model in a manifest."""
    return {p.name: list(p.shape) for p in parameters}


def write_rank(path: Path, rank: int, state: State) -> str:
    """Write one rank's file, whole or not at all; return its SHA-256."""
    path.mkdir(parents=True, exist_ok=True)
    merges = {key: merge.value for key, merge in state.merges.items()}
    data = save(state.vectors, metadata={"merges": json.dumps(merges)})
    digest = hashlib.sha256(data).hexdigest()
    _replace(path / rank_file(rank, digest), data)
    return digest


def write_manifest(
    path: Path,
    step: int,
    digests: Sequence[str],
    parameters: Sequence[ParameterInfo],
    link: Mapping[str, Any] | None = None,
) -> None:
    """Write the manifest, after every rank's file is there; remove files of earlier saves.

    Args:
        path: The checkpoint's folder.
        step: The next step.
        digests: By rank, the SHA-256 of its file.
        parameters: The model's.
        link: The figures by which algorithms were chosen, as JSON; None if there were none.
    """
    manifest = {
        "format": FORMAT,
        "step": step,
        "ranks": len(digests),
        "sha256": list(digests),
        "link": link,
        "parameters": layout_of(parameters),
    }
    _replace(path / MANIFEST, json.dumps(manifest, indent=1).encode())
    named = {rank_file(rank, digest) for rank, digest in enumerate(digests)}
    for file in path.glob("rank-*.safetensors"):
        if file.name not in named:
            file.unlink(missing_ok=True)


def read_manifest(path: Path, parameters: Sequence[ParameterInfo]) -> dict[str, Any]:
    """Read and check a manifest.

    Raises:
        StateError: There is none, it cannot be read, or it is of another model.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        checked: dict[str, Any] = {
            "format": int(manifest["format"]),
            "step": int(manifest["step"]),
            "ranks": int(manifest["ranks"]),
            "sha256": [str(digest) for digest in manifest["sha256"]],
            "link": manifest.get("link"),
        }
        saved = dict(manifest["parameters"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} holds no readable checkpoint ({error}); give the folder that handle.save "
            "wrote, on a file system that every rank can read"
        ) from error
    if checked["format"] != FORMAT:
        raise StateError(
            f"{path / MANIFEST} is of format {checked['format']}, and this version of compressa "
            f"reads format {FORMAT}; load it with the version that saved it"
        )
    well_formed = all(_SHA256.fullmatch(digest) for digest in checked["sha256"])
    if checked["ranks"] < 1 or len(checked["sha256"]) != checked["ranks"] or not well_formed:
        raise StateError(f"{path / MANIFEST} does not name one file for each rank: it is damaged")
    _check_model(path, saved, layout_of(parameters))
    return checked


def _check_model(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for name in sorted(saved.keys() | own.keys()):
        if saved.get(name) != own.get(name):
            raise StateError(
                f"the checkpoint {path} is of another model: parameter {name!r} has shape "
                f"{saved.get(name, 'none')} there and {own.get(name, 'none')} here"
            )


def read_rank(path: Path, rank: int, digest: str) -> dict[str, torch.Tensor]:
    """Read and check one rank's file.

    Raises:
        StateError: It is missing, damaged, or not the one that the manifest means.
    """
    file = path / rank_file(rank, digest)
    try:
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise StateError(
                f"{file} is not the file that {MANIFEST} names: it is damaged or of another save"
            )
        return dict(load(data))
    except (OSError, SafetensorError) as error:
        raise StateError(f"{file} cannot be read: {error}") from error


def restore(path: Path, manifest: Mapping[str, Any], state: State, rank: int, size: int) -> None:
    """Fill this rank's state from a checkpoint of any number of ranks; see `read_state`."""
    fill(state, read_state(path, manifest, state, rank, size))


def fill(state: State, values: Mapping[str, torch.Tensor]) -> None:
    """Copy what `read_state` returned into the live state."""
    for key, vector in values.items():
        state.vectors[key].copy_(vector)


def converted(key: str, saved: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a saved vector as it is kept here: a residual in its dtype, anything else as it is.

    Args:
        key: Its name.
        saved: What was saved.
        like: The live vector.

    Raises:
        StateError: It has another length.
    """
    narrowed = key.startswith("residual/")
    elems, due = (narrow.elems_of(v) if narrowed else v.numel() for v in (saved, like))
    if elems != due or saved.ndim != 1:
        raise StateError(
            f"{key!r} has {elems} elements in the state dict and {due} here: it is of another model"
        )
    return narrow.converted(saved, narrow.width_of(like)) if narrowed else saved


def read_state(
    path: Path, manifest: Mapping[str, Any], state: State, rank: int, size: int
) -> dict[str, torch.Tensor]:
    """Read this rank's state from a checkpoint of any number of ranks; change nothing.

    Args:
        path: The checkpoint's folder.
        manifest: From `read_manifest`.
        state: Says which vectors are due, and how they are merged.
        rank: This rank.
        size: Number of ranks now.

    Returns:
        A tensor for each of the state's vectors.

    Raises:
        StateError: A file cannot be read, or its vectors are not those of the state.
    """
    saved = manifest["ranks"]
    if saved == size:
        sources = [rank]
    else:
        sources = [i for i in range(saved) if i % size == rank]
    files = [read_rank(path, i, manifest["sha256"][i]) for i in sources]
    first = files[0] if 0 in sources else read_rank(path, 0, manifest["sha256"][0])
    for file in files or [first]:
        _check_keys(path, file, state)
    new = {}
    for key, vector in state.vectors.items():
        parts = [file.get(key) for file in (files or [first])]
        new[key] = _merged(path, key, parts, vector, state.merges[key], size / saved, bool(files))
        if state.merges[key] is Merge.FIRST:
            new[key] = _merged(path, key, [first.get(key)], vector, Merge.FIRST, 1.0, True)
    return new


def _check_keys(path: Path, saved: Mapping[str, torch.Tensor], state: State) -> None:
    """What this configuration has no use for would be lost without a word, unless it is zero."""
    for key in sorted(saved.keys() - state.vectors.keys()):
        if not saved[key].any():
            continue  # a residual that was used up when compressors were switched
        raise StateError(
            f"the checkpoint {path} has {key!r}, which this configuration does not keep: it was "
            "saved with another compressor; remove the folder, or restore the configuration"
        )


def _merged(
    path: Path,
    key: str,
    parts: Sequence[torch.Tensor | None],
    like: torch.Tensor,
    merge: Merge,
    gain: float,
    owns: bool,
) -> torch.Tensor:
    elems = narrow.elems_of(like)
    for part in parts:
        if part is None or part.ndim != 1 or narrow.elems_of(part) != elems:
            raise StateError(
                f"the checkpoint {path} has no {key!r} of {elems} values: it was saved with "
                "another compressor; remove the folder, or restore the configuration"
            )
    known = [part for part in parts if part is not None]
    if merge is Merge.FIRST:
        return known[0]
    if not owns:
        return torch.zeros_like(like)
    if len(known) == 1 and gain == 1.0:
        return narrow.converted(known[0], narrow.width_of(like))
    return narrow.converted(_sum(known) * gain, narrow.width_of(like))


def _sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = narrow.widened(parts[0])
    for part in parts[1:]:
        total = total + narrow.widened(part)
    return total


def _replace(file: Path, data: bytes) -> None:
    """Write a file so that it is never seen half written."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
