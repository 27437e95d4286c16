"""Recording: nothing while off, bounded while on, whole steps dropped, written where it ends."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from compressa.errors import ConfigError, StateError
from compressa.tracing import CAME, LEFT, Span, Trace, Tracer
from compressa.tracing.reader import read
from compressa.tracing.summary import summarise


def record(tracer: Tracer, steps: range, spans: int = 3) -> None:
    for step in steps:
        tracer.begin_step(step)
        for unit in range(spans):
            tracer.add(Span("compress", f"p{unit}", step, time.perf_counter(), 1e-4, unit))


def written(tmp_path: Path, tracer: Tracer, steps: range, spans: int = 3) -> Trace:
    tracer.start(tmp_path / "t.json")
    record(tracer, steps, spans)
    tracer.stop()
    return read(tmp_path / f"t-rank{tracer.rank}.json")


def test_nothing_is_kept_or_written_while_it_is_off(tmp_path: Path) -> None:
    tracer = Tracer(0, 2)
    record(tracer, range(3))
    tracer.stop()
    assert not tracer.on
    (mark,) = written(tmp_path, tracer, range(3, 4)).steps
    assert mark[0] == 3
    record(tracer, range(4, 6))
    tracer.stop()
    assert {span.step for span in read(tmp_path / "t-rank0.json").spans} == {3}


def test_the_file_has_the_ranks_number_and_the_folder_is_made(tmp_path: Path) -> None:
    tracer = Tracer(3, 4)
    tracer.start(tmp_path / "a" / "b" / "trace").__exit__(None, None, None)
    tracer.start(str(tmp_path / "run.1.perfetto"))
    tracer.stop()
    names = sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file())
    assert names == ["a/b/trace-rank3.json", "run.1-rank3.perfetto"]


@pytest.mark.parametrize("spans", [1, 3, 7])
def test_the_oldest_steps_are_dropped_whole(tmp_path: Path, spans: int) -> None:
    tracer = Tracer(0, 1, most_events=40)
    recording = tracer.start(tmp_path / "t.json")
    for step in range(50):
        record(tracer, range(step, step + 1), spans)
        assert len(recording) <= 40
    tracer.stop()
    trace = read(tmp_path / "t-rank0.json")
    kept = [step for step, _ in trace.steps]
    assert kept == list(range(50))[-len(kept) :]
    each = spans + 1  # and what the training thread did
    assert 40 // 2 - each < len(trace.spans) <= 40 // 2 + each
    assert trace.dropped_steps == 50 - len(kept)
    assert trace.dropped_spans == 0
    units = [span.step for span in trace.spans if span.stage == "compress"]
    assert units == [s for s in kept for _ in range(spans)]


def test_what_does_not_fit_into_one_step_is_counted_and_the_next_has_room(tmp_path: Path) -> None:
    tracer = Tracer(0, 1, most_events=40)
    tracer.start(tmp_path / "t.json")
    record(tracer, range(1), 100)
    record(tracer, range(1, 2), 15)
    tracer.stop()
    trace = read(tmp_path / "t-rank0.json")
    assert [span.step for span in trace.spans] == [1] * 15 + [1]  # and what training did
    assert (trace.dropped_steps, trace.dropped_spans) == (1, 60 + 1)


def test_only_the_steps_that_were_asked_for_are_recorded(tmp_path: Path) -> None:
    tracer = Tracer(0, 1)
    tracer.start(tmp_path / "t.json", (3, 5))
    record(tracer, range(7))
    assert not (tmp_path / "t-rank0.json").exists()
    # What step 5 defers is done in step 6, so only step 7 ends it.
    tracer.add(Span("apply", "p0", 5, time.perf_counter(), 1e-4))
    tracer.begin_step(7)
    assert not tracer.on
    trace = read(tmp_path / "t-rank0.json")
    assert [step for step, _ in trace.steps] == [3, 4, 5, 6]
    assert sorted({span.step for span in trace.spans}) == [3, 4, 5]
    assert [span.stage for span in trace.spans if span.step == 5] == [
        *["compress"] * 3, "apply", "train",
    ]  # fmt: skip


def test_a_step_begins_once_however_often_it_is_told(tmp_path: Path) -> None:
    tracer = Tracer(0, 1)
    tracer.start(tmp_path / "t.json")
    for step in (0, 0, 1, 1, 1, 0):
        tracer.begin_step(step)
    tracer.stop()
    assert [s for s, _ in read(tmp_path / "t-rank0.json").steps] == [0, 1, 0]


def test_what_serves_an_earlier_step_than_the_first_is_left_out(tmp_path: Path) -> None:
    tracer = Tracer(0, 1)
    tracer.start(tmp_path / "t.json")
    record(tracer, range(4, 5))
    tracer.add(Span("apply", "p0", 3, time.perf_counter(), 1e-4))
    tracer.stop()
    assert {span.step for span in read(tmp_path / "t-rank0.json").spans} == {4}


def test_time_in_the_outbox_is_told_from_that_on_the_wire(tmp_path: Path) -> None:
    tracer = Tracer(0, 3)
    tracer.start(tmp_path / "t.json")
    tracer.begin_step(0)
    now_s = time.perf_counter()
    # To two peers: the first byte to one leaves after 2 s, the last to the other after 5 s.
    tracer.add(Span(LEFT, "", 0, now_s + 3, 2, 7, 1))
    tracer.add(Span(LEFT, "", 0, now_s + 2, 1, 7, 1))
    tracer.add(Span(LEFT, "", 0, now_s, 9, 7, 2))  # another exchange's
    tracer.add(Span("wire", "p", 0, now_s + 1, 8, 7, 1, size_bytes=10, peers=2))
    tracer.add(Span("wire", "q", 0, now_s + 1, 8, 6, 1, size_bytes=10, peers=2))
    tracer.stop()
    trace = read(tmp_path / "t-rank0.json")
    spans = [span for span in trace.spans if span.unit == 7]
    assert {(s.stage, s.waits_for) for s in spans} == {("queued", "outbox"), ("wire", "")}
    (queued,) = (s for s in spans if s.stage == "queued")
    (wire,) = (s for s in spans if s.stage == "wire")
    assert queued.seconds == pytest.approx(1, abs=1e-3)
    assert wire.started_s == queued.ended_s
    assert wire.seconds == pytest.approx(7, abs=1e-3)
    assert wire.sent_s is not None
    assert wire.sent_s - wire.started_s == pytest.approx(3, abs=1e-3)
    assert (wire.size_bytes, wire.peers) == (10, 2)
    (other,) = (s for s in trace.spans if s.unit == 6)
    assert other.sent_s is None
    assert other.seconds == pytest.approx(8, abs=1e-3)


def test_stretches_of_training_and_waits_fill_the_steps(tmp_path: Path) -> None:
    tracer = Tracer(0, 1)
    tracer.start(tmp_path / "t.json")
    for step in range(3):
        tracer.begin_step(step)
        with tracer.calls(), tracer.calls():
            until_s = time.thread_time() + 2e-3
            while time.thread_time() < until_s:
                pass
        began_s = time.perf_counter()
        tracer.begin_wait()
        time.sleep(1e-3)
        tracer.end_wait("p", step, began_s, time.perf_counter() - began_s)
    tracer.stop()
    trace = read(tmp_path / "t-rank0.json")
    stretches = sorted((s for s in trace.spans if s.stage == "train"), key=lambda s: s.started_s)
    assert [span.step for span in stretches] == [0, 0, 1, 1, 2, 2]
    for span in stretches:
        assert span.cpu_s is not None
        assert span.calls_s <= span.cpu_s + 1e-6
    assert all(span.calls_s >= 2e-3 - 1e-6 for span in stretches[::2])
    assert all(span.calls_s == 0 for span in stretches[1::2])
    for (step, began_s), first in zip(trace.steps, stretches[::2], strict=True):
        assert first.step == step
        assert first.started_s == pytest.approx(began_s, abs=1e-6)
    for summed in (figures.breakdown for _, figures in summarise(trace).steps):
        assert summed.calls_s > 0
        # To read the clocks takes some microseconds, in which the thread may lose its core.
        assert summed.unknown_s < 0.9 * summed.seconds


def test_what_another_thread_does_is_not_the_training_threads(tmp_path: Path) -> None:
    tracer = Tracer(0, 1)
    tracer.start(tmp_path / "t.json")
    tracer.begin_step(0)

    def submit() -> None:
        with tracer.calls():
            until_s = time.thread_time() + 2e-3
            while time.thread_time() < until_s:
                pass

    thread = threading.Thread(target=submit)
    thread.start()
    thread.join()
    tracer.stop()
    (span,) = read(tmp_path / "t-rank0.json").spans
    assert (span.stage, span.calls_s) == ("train", 0)


def test_a_trace_may_be_ended_by_another_thread(tmp_path: Path) -> None:
    tracer = Tracer(0, 1)
    tracer.start(tmp_path / "t.json")
    tracer.begin_step(0)
    thread = threading.Thread(target=tracer.stop)
    thread.start()
    thread.join()
    (span,) = read(tmp_path / "t-rank0.json").spans
    assert span.stage == "train"
    assert span.cpu_s is None or span.cpu_s <= span.seconds + 1e-3


def test_arrivals_are_put_to_their_exchange(tmp_path: Path) -> None:
    tracer = Tracer(0, 4)
    tracer.start(tmp_path / "t.json")
    tracer.begin_step(0)
    now_s = time.perf_counter()
    # Two that overlap are one; what came in one piece has no length.
    tracer.add(Span(CAME, "", 0, now_s + 2, 2, 7, 1))
    tracer.add(Span(CAME, "", 0, now_s + 3, 2, 7, 1))
    tracer.add(Span(CAME, "", 0, now_s + 7, 0, 7, 1))
    tracer.add(Span(CAME, "", 0, now_s, 9, 7, 2))  # of an exchange that is not done
    tracer.add(Span("wire", "p", 0, now_s + 1, 8, 7, 1, size_bytes=10, peers=3))
    tracer.stop()
    spans = read(tmp_path / "t-rank0.json").spans
    (wire,) = (span for span in spans if span.stage == "wire")
    came = [span for span in spans if span.stage == "arrive"]
    assert {(s.name, s.step, s.unit, s.number) for s in came} == {("p", 0, 7, 1)}
    times = [(s.started_s - wire.started_s, s.seconds) for s in came]
    assert times == [pytest.approx(due, abs=1e-5) for due in ((1, 3), (6, 0))]


def test_threads_may_record_while_it_ends(tmp_path: Path) -> None:
    tracer = Tracer(0, 1, most_events=100)
    ending = threading.Event()

    def work() -> None:
        while not ending.is_set():
            tracer.add(Span("compress", "p", 0, time.perf_counter(), 1e-6, 0))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            tracer.start(tmp_path / "t.json")
            tracer.begin_step(0)
            time.sleep(1e-3)
            tracer.stop()
            assert len(read(tmp_path / "t-rank0.json").spans) <= 100
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def test_it_is_written_at_exit_by_whoever_forgets(tmp_path: Path) -> None:
    code = (
        "from compressa.tracing import Tracer;"
        f"tracer = Tracer(0, 1); tracer.start({str(tmp_path / 't.json')!r});"
        "tracer.begin_step(5)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert [step for step, _ in read(tmp_path / "t-rank0.json").steps] == [5]


def test_what_has_ended_is_not_kept_for_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    monkeypatch.setattr(atexit, "register", lambda function, *_: kept.append(function))
    monkeypatch.setattr(atexit, "unregister", lambda function: kept.remove(function))
    tracer = Tracer(0, 1)
    with tracer.start(tmp_path / "t.json"):
        assert len(kept) == 1
    assert not kept


@pytest.mark.parametrize("steps", [(3, 2), (-1, 2)])
def test_steps_that_cannot_be_are_refused(tmp_path: Path, steps: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="first step and the last"):
        Tracer(0, 1).start(tmp_path / "t.json", steps)


def test_a_folder_that_cannot_be_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"trace\.path: no trace can be written to"):
        Tracer(0, 1).start(tmp_path / "file" / "t.json")


def test_a_folder_that_has_gone_is_an_error_at_the_end(tmp_path: Path) -> None:
    tracer = Tracer(0, 1)
    tracer.start(tmp_path / "folder" / "t.json")
    (tmp_path / "folder").rmdir()
    with pytest.raises(StateError, match="the trace can not be written to"):
        tracer.stop()
    assert not tracer.on
    tracer.stop()
