"""Checkpoints of residuals and factors: one file per rank and a manifest.

    <path>/manifest.json                              what was saved: a SHA-256 for every rank, and
                                                      one of the manifest itself
    <path>/rank-00000-0123456789abcdef.safetensors    rank 0's state, named by its SHA-256
    ...

A later save to the same folder writes beside the earlier one, replaces the manifest when all of it
is there, and only then removes what the manifest no longer names, and what a save that was killed
has left half written: at any time the folder holds one complete checkpoint.

Residuals are rank-local: a checkpoint is complete only with every rank's file. The files hold
tensors and JSON only, nothing that runs code when it is read. Another number of ranks reads
all files and redistributes: e'_j = (P'/P) times the sum of the e_i mapped to j, which keeps
(1/P) sum_i e_i.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from annotated_types import Ge, Le, MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from compressa import files
from compressa.aggregators import narrow
from compressa.aggregators.base import Merge, State
from compressa.errors import StateError
from compressa.parameters import ParameterInfo

FORMAT: Final = 2
MANIFEST = "manifest.json"
_MOST_STEP = 1 << 62
"""Later than any training; a few steps more still fit into 63 bits."""

Step = Annotated[int, Ge(0), Le(_MOST_STEP)]
_CHECKSUM = "checksum"
_RANK_FILES = "rank-*.safetensors"
_MOST_MANIFEST_BYTES = 256 << 20


def rank_file(rank: int, digest: str) -> str:
    """Return the name of a rank's file, within the checkpoint's folder.

    Args:
        rank: The rank.
        digest: The file's SHA-256, in hexadecimal digits.
    """
    return f"rank-{rank:05d}-{digest[:16]}.safetensors"


def layout_of(parameters: Sequence[ParameterInfo]) -> dict[str, list[int]]:
    """Return what identifies a model in a manifest: shapes by name, in its order."""
    return {p.name: list(p.shape) for p in parameters}


def write_rank(path: Path, rank: int, state: State) -> str:
    """Write one rank's file, whole or not at all; return its SHA-256, as hex digits.

    Args:
        path: The checkpoint's folder, which is made if it is not there.
        rank: This rank.
        state: What is written; on a GPU it is waited for.

    Raises:
        OSError: It cannot be written.
    """
    path.mkdir(parents=True, exist_ok=True)
    merges = {key: merge.value for key, merge in state.merges.items()}
    data = save(state.vectors, metadata={"merges": json.dumps(merges)})
    digest = hashlib.sha256(data).hexdigest()
    files.write(path / rank_file(rank, digest), data)
    return digest


class Manifest(BaseModel):
    """What a checkpoint says of itself.

    Attributes:
        format: Of the folder.
        step: The next step.
        ranks: How many have saved.
        sha256: By rank, of its file.
        link: The figures by which algorithms were chosen, as JSON; None if there were none.
        parameters: Shapes by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal[2] = FORMAT
    step: Step
    ranks: Annotated[int, Ge(1), Le(1 << 16)]
    sha256: Annotated[tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...], MinLen(1)]
    link: dict[str, Any] | None
    parameters: dict[str, tuple[Annotated[int, Ge(0), Le(_MOST_STEP)], ...]]


def write_manifest(
    path: Path,
    step: int,
    digests: Sequence[str],
    parameters: Sequence[ParameterInfo],
    link: Mapping[str, Any] | None = None,
) -> None:
    """Write the manifest, after every rank's file is there; remove what earlier saves have left.

    Args:
        path: The checkpoint's folder.
        step: The next step.
        digests: By rank, the SHA-256 of its file.
        parameters: The model's.
        link: The figures by which algorithms were chosen, as JSON; None if there were none.

    Raises:
        OSError: It cannot be written.
    """
    said = {
        "format": FORMAT,
        "step": step,
        "ranks": len(digests),
        "sha256": list(digests),
        "link": link,
        "parameters": layout_of(parameters),
    }
    files.write(
        path / MANIFEST, json.dumps({_CHECKSUM: _checksum(said), **said}, indent=1).encode()
    )
    named = {rank_file(rank, digest) for rank, digest in enumerate(digests)}
    for file in path.glob(_RANK_FILES):
        if file.name not in named:
            file.unlink(missing_ok=True)
    for pattern in (_RANK_FILES, MANIFEST):
        files.sweep(path, pattern)


def _checksum(said: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a manifest says, however it is set out."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path, parameters: Sequence[ParameterInfo]) -> Manifest:
    """Read and check a manifest.

    Args:
        path: The checkpoint's folder.
        parameters: The model's; names and shapes must be those that were saved.

    Raises:
        StateError: There is none, it cannot be read, is damaged, or is of another model.
    """
    try:
        said = dict(json.loads(files.read(path / MANIFEST, _MOST_MANIFEST_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise StateError(
            f"{path} holds no readable checkpoint ({error}); give the folder that handle.save "
            "wrote, on a file system that every rank can read"
        ) from error
    if said.get("format") != FORMAT:
        raise StateError(
            f"{path / MANIFEST} is of format {said.get('format')!r:.20}, and this version of "
            f"compressa reads format {FORMAT}; load it with the version that saved it"
        )
    manifest = _manifest(path / MANIFEST, said)
    saved = {name: list(shape) for name, shape in manifest.parameters.items()}
    _check_model(path, saved, layout_of(parameters))
    return manifest


def _manifest(file: Path, said: dict[str, Any]) -> Manifest:
    checksum = said.pop(_CHECKSUM, None)
    if checksum != _checksum(said):
        raise StateError(f"{file} is not as it was written: its checksum is another; it is damaged")
    try:
        manifest = Manifest.model_validate_json(json.dumps(said))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise StateError(f"{file}: {place}: {error.errors()[0]['msg']}: it is damaged") from error
    if len(manifest.sha256) != manifest.ranks:
        raise StateError(f"{file} does not name one file for each rank: it is damaged")
    return manifest


def _check_model(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for name in sorted(saved.keys() | own.keys()):
        if saved.get(name) != own.get(name):
            raise StateError(
                f"the checkpoint {path} is of another model: parameter {name!r} has shape "
                f"{saved.get(name, 'none')} there and {own.get(name, 'none')} here"
            )


def _read_rank(path: Path, rank: int, digest: str) -> dict[str, torch.Tensor]:
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


def restore(path: Path, manifest: Manifest, state: State, rank: int, size: int) -> None:
    """Fill this rank's state from a checkpoint of any number of ranks.

    Args:
        path: As of `read_state`; so are the others.
        manifest: From `read_manifest`.
        state: Filled.
        rank: This rank.
        size: Number of ranks now.

    Raises:
        StateError: A file cannot be read, or its vectors are not those of the state, which then
            is as it was.
    """
    fill(state, read_state(path, manifest, state, rank, size))


def fill(state: State, values: Mapping[str, torch.Tensor]) -> None:
    """Copy what `read_state` returned into the live state, by name and in place.

    Args:
        state: Has a vector of the same length for each.
        values: By key; converted to the state's dtypes.
    """
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


def checked_step(saved: Any) -> int:
    """Return the step of a state dict.

    Args:
        saved: From outside; should be an int64 tensor of one element.

    Raises:
        StateError: It is something else, negative, or above 2^62.
    """
    whole = isinstance(saved, torch.Tensor) and saved.dtype is torch.int64 and saved.numel() == 1
    if not whole or not 0 <= int(saved) <= _MOST_STEP:
        raise StateError(f"the step in the state dict is {saved!r:.40}: it is damaged")
    return int(saved)


def read_state(
    path: Path, manifest: Manifest, state: State, rank: int, size: int
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
    saved = manifest.ranks
    if saved == size:
        sources = [rank]
    else:
        sources = [i for i in range(saved) if i % size == rank]
    owned = [_read_rank(path, i, manifest.sha256[i]) for i in sources]
    first = owned[0] if 0 in sources else _read_rank(path, 0, manifest.sha256[0])
    for vectors in owned or [first]:
        _check_keys(path, vectors, state)
    new = {}
    for key, vector in state.vectors.items():
        parts = [vectors.get(key) for vectors in (owned or [first])]
        new[key] = _merged(path, key, parts, vector, state.merges[key], size / saved, bool(owned))
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
            "saved with another compressor or strategy; remove the folder, or restore the "
            "configuration"
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
                "another compressor or strategy; remove the folder, or restore the configuration"
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
