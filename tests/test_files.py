"""Files are whole or not there; what killed writers leave is swept up, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest

from compressa import files

WRITER = """
import os, pathlib, signal, sys
from compressa import files
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGSTOP)
files.write(pathlib.Path(sys.argv[1]), sys.argv[2].encode())
"""


def write_and_stop(file: Path, text: str) -> subprocess.Popen[bytes]:
    """Have another process write a file, and stop when it is written but not in its place."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file), text])
    assert os.WIFSTOPPED(os.waitpid(writer.pid, os.WUNTRACED)[1])
    return writer


def test_what_is_written_is_read(tmp_path: Path) -> None:
    for data in (b"", b"first", b"second"):
        files.write(tmp_path / "file", data)
        assert files.read(tmp_path / "file", 10) == data
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes((3 << 20) + 1))
    assert len(files.read(tmp_path / "file", (3 << 20) + 1)) == (3 << 20) + 1
    with pytest.raises(ValueError, match="larger than 3 MiB"):
        files.read(tmp_path / "file", 3 << 20)
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        files.read("/dev/zero", 1 << 20)


def test_a_writer_that_goes_on_is_left_alone_and_a_dead_one_is_swept_up(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    living = write_and_stop(tmp_path / "rank-0", "living")
    killed = write_and_stop(tmp_path / "rank-1", "killed")
    files.sweep(tmp_path, "rank-*")
    assert len(list(tmp_path.glob(".rank-*"))) == 2
    killed.kill()
    killed.wait()
    files.sweep(tmp_path, "rank-*")
    living.send_signal(signal.SIGCONT)
    assert living.wait() == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other", "rank-0"]
    assert (tmp_path / "rank-0").read_bytes() == b"living"


def test_only_what_matches_is_swept_up(tmp_path: Path) -> None:
    for name in (".rank-0.0123", ".manifest.0123", "rank-0", ".rank-0"):
        (tmp_path / name).touch()
    files.sweep(tmp_path, "rank-*")
    assert {file.name for file in tmp_path.iterdir()} == {".manifest.0123", "rank-0", ".rank-0"}


def test_writers_and_sweepers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    over = threading.Event()

    def sweep() -> None:
        while not over.is_set():
            files.sweep(tmp_path, "rank-*")

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for turn in range(300):
            files.write(tmp_path / f"rank-{turn}", b"%d" % turn)
    finally:
        over.set()
        for sweeper in sweepers:
            sweeper.join()
    assert all((tmp_path / f"rank-{turn}").read_bytes() == b"%d" % turn for turn in range(300))
    assert len(list(tmp_path.iterdir())) == 300


def test_without_locks_files_are_written_and_nothing_is_swept_up(tmp_path: Path) -> None:
    (tmp_path / ".rank-0.0123").touch()
    with mock.patch("fcntl.flock", side_effect=OSError("no locks available")):
        files.write(tmp_path / "rank-1", b"data")
        files.sweep(tmp_path, "rank-*")
    assert {file.name for file in tmp_path.iterdir()} == {".rank-0.0123", "rank-1"}


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.write(tmp_path / "missing" / "file", b"")
