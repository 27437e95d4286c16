from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

from lab.tasks import TASKS, Task, load_task
from lab.tasks.corpus import VOCABULARY, standard_library, tokens
from lab.tasks.digits import split_indices
from lab.tasks.task import EpochOrder

NAMES = sorted(TASKS)


@pytest.fixture(params=NAMES)
def task(request: pytest.FixtureRequest) -> Task:
    return load_task(request.param)


@pytest.fixture
def one_thread() -> Iterator[None]:
    # As on every rank; several threads on a small model spin more than they compute.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def parameters_elems(task: Task) -> int:
    return sum(p.numel() for p in task.build_model(0).parameters())


def test_models_of_one_seed_are_the_same_bits_and_of_two_are_not(task: Task) -> None:
    first, again, other = (task.build_model(seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_building_and_batching_leave_the_users_generator_alone(task: Task) -> None:
    before = torch.random.get_rng_state()
    task.build_model(1)
    task.batch(0, 2, 5, 1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_batch_depends_on_seed_rank_and_step_only(task: Task) -> None:
    wanted = task.batch(1, 4, 7, 0)
    task.batch(0, 4, 300, 9)  # another epoch, another seed: no state may stick
    again = task.batch(1, 4, 7, 0)
    assert all(torch.equal(a, b) for a, b in zip(wanted, again, strict=True))
    for other in (task.batch(2, 4, 7, 0), task.batch(1, 4, 8, 0), task.batch(1, 4, 7, 1)):
        assert not torch.equal(wanted[0], other[0])


def test_ranks_and_steps_of_one_epoch_share_no_example() -> None:
    order = EpochOrder(examples=100, batch=6)
    drawn = [order.indices(rank, 4, step, 0) for step in range(4) for rank in range(4)]
    assert len(set(torch.cat(drawn).tolist())) == 4 * 4 * 6
    following = torch.cat([order.indices(rank, 4, 4, 0) for rank in range(4)])
    first = torch.cat([order.indices(rank, 4, 0, 0) for rank in range(4)])
    assert not torch.equal(first, following)  # a new epoch has an order of its own


def test_more_ranks_than_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="use fewer hosts"):
        EpochOrder(examples=10, batch=6).indices(0, 2, 0, 0)


@pytest.mark.parametrize(
    ("name", "elems", "share"),
    [("gpt-demo", 1_500_000, 0.1), ("gpt-full", 4_000_000, 0.1), ("mlp", 4_275_210, 0.0)],
)
def test_parameter_counts_are_as_stated(name: str, elems: int, share: float) -> None:
    assert parameters_elems(load_task(name)) == pytest.approx(elems, rel=share, abs=0)


@pytest.mark.parametrize("name", ["gpt-demo", "gpt-full"])
def test_a_gpt_batch_is_256_tokens_and_targets_are_the_next_ones(name: str) -> None:
    inputs, targets = load_task(name).batch(0, 4, 0, 0)
    assert inputs.numel() == 256
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_gpt_sees_no_later_character() -> None:
    task = load_task("gpt-demo")
    model = task.build_model(0)
    inputs, _ = task.batch(0, 1, 0, 0)
    changed = inputs.clone()
    changed[:, 40] = (changed[:, 40] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = model(inputs), model(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40:], after[:, 40:])


def test_digits_split_is_disjoint_and_whole() -> None:
    train, validation = split_indices(1797)
    assert len(validation) == 599
    assert torch.cat([train, validation]).sort().values.tolist() == list(range(1797))


def test_corpus_is_bounded_deterministic_and_split_by_files() -> None:
    corpus = standard_library(600_000)
    standard_library.cache_clear()
    again = standard_library(600_000)
    assert torch.equal(corpus.train, again.train)
    assert torch.equal(corpus.validation, again.validation)
    assert 500_000 < len(corpus.train) + len(corpus.validation) <= 600_000
    assert corpus.validation_files
    assert not set(corpus.train_files) & set(corpus.validation_files)
    assert not any(
        "site-packages" in name or "test" in name.split("/") for name in again.train_files
    )


def test_a_larger_corpus_moves_no_file_to_the_other_split() -> None:
    small, large = standard_library(600_000), standard_library()
    assert not set(small.train_files) & set(large.validation_files)
    assert not set(small.validation_files) & set(large.train_files)


def test_tokens_keep_ascii_apart_and_fold_the_rest() -> None:
    printable = b"\n\t" + bytes(range(32, 127))
    assert tokens(printable).tolist() == list(range(VOCABULARY - 1))
    assert tokens("é".encode()).tolist() == [VOCABULARY - 1] * 2


def test_digits_cnn_learns(one_thread: None) -> None:
    task = load_task("digits")
    model = task.build_model(0)
    optimizer, schedule = task.optimizer(model, 120)
    for step in range(120):
        inputs, targets = task.batch(0, 1, step, 0)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    accuracy = task.evaluate(model)[0]
    assert (accuracy.name, accuracy.unit) == ("accuracy", "fraction")
    assert accuracy.value > 0.9


def test_targets_are_on_the_right_side_of_float32() -> None:
    accuracy, loss = (load_task(name).quality for name in ("digits", "gpt-demo"))
    assert accuracy.target(0.95) == pytest.approx(0.94)
    assert loss.target(2.0) == pytest.approx(2.02)
    assert accuracy.reached(0.94, 0.94)
    assert not loss.reached(float("nan"), 2.02)


def test_an_unknown_task_names_those_there_are() -> None:
    with pytest.raises(KeyError, match="gpt-demo"):
        load_task("gpt")
