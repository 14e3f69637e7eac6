"""Loaders that are read one step ahead: batches, announcements, positions."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_map

from flyball_integrations.shared.loading.microbatch_reader import MicrobatchReader
from flyball_integrations.shared.loading.step_loader import StepLoader
from flyball_integrations.shared.loading.step_work import BatchLengths, read_lengths, split_lengths


class Announced:
    """Announcer of a rank whose training calls `train`."""

    def __init__(self) -> None:
        self.next_step = 7
        self.work: dict[int, list[BatchLengths]] = {}
        #: Announcements before the step in which they came.
        self.announced_in: list[tuple[int, int]] = []

    def announce(self, work: Sequence[BatchLengths], step: int) -> None:
        self.work[step] = list(work)
        self.announced_in.append((step, self.next_step))

    def train(self) -> None:
        self.next_step += 1


class Positioned:
    """A loader of numbers from 0 whose state is an object that it goes on changing."""

    def __init__(self, size: int, *, fails_at: int | None = None) -> None:
        self.size = size
        self.epoch = 0
        self.fails_at = fails_at
        self.state = {"next": 0, "epoch": 0}
        self.read: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[int]:
        self.state["epoch"] = self.epoch
        while self.state["next"] < self.size:
            number = self.state["next"]
            if number == self.fails_at:
                raise OSError("this file is broken")
            self.state["next"] += 1
            self.read.append((self.epoch, number))
            yield number
        self.state["next"] = 0

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = dict(state)


def looked_ahead(loader: Any, announced: Announced, **options: Any) -> StepLoader[Any]:  # noqa: ANN401
    return StepLoader(
        loader, lengths=lambda number: [number], find_announcer=lambda: announced, **options
    )


def test_each_step_is_announced_while_the_one_before_runs() -> None:
    announced, items = Announced(), []
    for item in looked_ahead(range(4), announced):
        items.append(item)
        announced.train()
    assert items == [0, 1, 2, 3]
    assert announced.work == {7 + number: [[number]] for number in range(4)}
    # The first one as it begins, all others a step before.
    assert announced.announced_in == [(7, 7), (8, 7), (9, 8), (10, 9)]


def test_a_step_that_accumulates_has_all_its_batches() -> None:
    announced, items = Announced(), []
    loader = looked_ahead(range(5), announced, num_batches=2)
    for item in loader:
        items.append(item)
        announced.train()
    assert items == [[0, 1], [2, 3], [4]]
    assert len(loader) == 3
    assert announced.work == {7: [[0], [1]], 8: [[2], [3]], 9: [[4]]}
    with pytest.raises(ValueError, match=r"^accumulate must be at least 1, not 0$"):
        looked_ahead(range(5), announced, num_batches=0)


def test_a_batch_that_is_not_trained_on_gives_its_step_to_the_next_one() -> None:
    announced = Announced()
    for item in looked_ahead(range(3), announced):
        if item != 0:
            announced.train()
    assert announced.work == {7: [[1]], 8: [[2]]}


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 3))
def test_a_saved_position_is_that_of_a_loader_that_reads_nothing_ahead(
    size: int, num_steps: int, num_batches: int
) -> None:
    plain, stock = Positioned(size), []
    batches = iter(plain)
    while items := list(itertools.islice(batches, num_batches)):
        # As a step has run, before the loader is asked again.
        stock.append((items, copy.deepcopy(plain.state_dict())))
    loader, announced, found = Positioned(size), Announced(), []
    steps = looked_ahead(loader, announced, num_batches=num_batches)
    for items in steps:
        assert steps.state_dict() == loader.state_dict()
        found.append((items, copy.deepcopy(loader.state_dict())))
        announced.train()
        if len(found) == num_steps:
            break
    expected = stock[: num_steps or None]
    # A plain loader that is read to its end by an `islice` that is cut short is at its end.
    assert [items for items, _ in found] == [items for items, _ in expected]
    whole = [pair for pair in zip(found, expected, strict=True) if len(pair[0][0]) == num_batches]
    assert all(own == other for own, other in whole)
    if found and len(found) == num_steps and len(found[-1][0]) == num_batches:
        # Also after a loop that was left, and by a checkpointer that resumes from it.
        assert loader.state_dict() == found[-1][1]
        resumed = Positioned(size)
        looked_ahead(resumed, Announced()).load_state_dict(loader.state_dict())
        left = [item for items, _ in stock[num_steps:] for item in items]
        assert list(resumed) == left


def test_no_epoch_begins_before_its_number_is_set() -> None:
    loader, announced = Positioned(2), Announced()
    steps = looked_ahead(loader, announced)
    for epoch in range(2):
        steps.set_epoch(epoch)
        for _ in steps:
            announced.train()
    assert loader.read == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert loader.state_dict() is loader.state  # its own again


def test_an_iterator_of_torch_that_this_class_did_not_begin_has_its_own_position() -> None:
    class OfTorch(Positioned):
        _iterator: object = None

        def __iter__(self) -> Iterator[int]:
            self._iterator = super().__iter__()
            return self._iterator

    loader, announced = OfTorch(4), Announced()
    for _ in looked_ahead(loader, announced):
        break
    assert loader.state_dict()["next"] == 1
    next(iter(loader))
    assert loader.state_dict()["next"] == 3


class Restarted(Positioned):
    """Begins anew in each pass, as most loaders."""

    def __iter__(self) -> Iterator[int]:
        self.state = {"next": 0, "epoch": self.state["epoch"] + 1}
        while self.state["next"] < self.size:
            self.state["next"] += 1
            yield self.state["next"] - 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_loop_that_was_left_does_not_hide_the_position_of_later_ones(fails: bool) -> None:
    loader, announced = Restarted(9), Announced()

    def train_two(batches: Any) -> None:  # noqa: ANN401
        for number in batches:
            announced.train()
            if number == 1 and fails:
                raise ArithmeticError
            if number == 1:
                break

    for epoch in (1, 2, 3):
        # Made anew for each epoch, as in the docs.
        with suppress(ArithmeticError):
            train_two(looked_ahead(loader, announced))
        assert loader.state_dict() == {"next": 2, "epoch": epoch}
        assert loader.state["next"] == 3
    # A pass without this class.
    batches = iter(loader)
    assert [next(batches) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert loader.state_dict() == {"next": 5, "epoch": 4}
    assert "state_dict" not in vars(loader)


class Stream(Positioned):
    """An iterator: each pass goes on where the one before it was left."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        number = self.state["next"]
        if number == self.fails_at:
            raise OSError("this file is broken")
        if number >= self.size:
            raise StopIteration
        self.state["next"] += 1
        return number


@given(
    st.integers(0, 9),
    st.lists(st.integers(1, 5), max_size=5),  # items taken in each pass that is left
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_an_iterator_goes_on_with_what_was_read_ahead(
    size: int, passes: list[int], num_batches: int, gives_lists: bool, is_announced: bool
) -> None:
    announced, stream, found = Announced(), Stream(size), list[int]()
    steps = StepLoader(
        stream,
        lengths=lambda number: [number],
        find_announcer=lambda: announced if is_announced else None,
        num_batches=num_batches,
        gives_lists=gives_lists,
    )
    for num_taken in (*passes, size + 1):
        for taken, item in enumerate(steps, 1):
            found += item if isinstance(item, list) else [item]
            announced.train()
            if len(found) % num_batches == 0:
                assert stream.state_dict()["next"] == len(found)
            if taken == num_taken:
                break
    assert found == list(range(size))
    assert stream.state_dict() is stream.state
    # Plain iterators too, which have no position.
    plain, found = looked_ahead(iter(range(size)), announced), []
    for num_taken in (*passes, size + 1):
        found += list(itertools.islice(plain, num_taken))
    assert found == list(range(size))


def test_an_iterator_that_was_set_elsewhere_begins_there() -> None:
    stream, announced = Stream(9), Announced()
    steps = looked_ahead(stream, announced)
    assert next(iter(steps)) == 0
    stream.load_state_dict({"next": 6, "epoch": 0})
    assert list(steps) == [6, 7, 8]


@given(st.integers(0, 7), st.integers(1, 4), st.booleans(), st.booleans())
def test_batches_before_an_exception_are_given_where_they_come_one_by_one(
    fails_at: int, num_batches: int, is_announced: bool, is_iterator: bool
) -> None:
    kind, announced = Stream if is_iterator else Positioned, Announced()
    steps = StepLoader(
        kind(8, fails_at=fails_at),
        lengths=lambda number: [number],
        find_announcer=lambda: announced if is_announced else None,
        num_batches=num_batches,
        gives_lists=False,
    )
    found = list[int]()
    with pytest.raises(OSError, match="this file is broken"):
        for number in steps:
            found.append(number)
            announced.next_step = 7 + len(found) // num_batches
    assert found == list(range(fails_at))


def test_a_list_of_batches_comes_whole_or_not_at_all() -> None:
    announced, found = Announced(), []
    with pytest.raises(OSError, match="this file is broken"):
        for batches in looked_ahead(Positioned(8, fails_at=3), announced, num_batches=2):
            found.append(batches)
            announced.train()
    assert found == [[0, 1]]


def test_nothing_is_read_ahead_where_nothing_is_announced() -> None:
    loader, num_read = Positioned(3), []
    for _ in StepLoader(loader, lengths=lambda number: [number], find_announcer=lambda: None):
        num_read.append(len(loader.read))
    assert num_read == [1, 2, 3]


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_loader_whose_position_cannot_be_kept_is_not_read_ahead(
    is_frozen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Frozen:
        __slots__ = ()

        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

        def state_dict(self) -> dict[str, int]:
            return {}

    class Open(Frozen):
        def state_dict(self) -> dict[str, int]:
            raise RuntimeError("not while iterating")

    announced = Announced()
    assert list(looked_ahead(Frozen() if is_frozen else Open(), announced)) == [0, 1, 2]
    assert announced.work == {}
    (line,) = caplog.messages
    assert line.startswith("steps are not announced: state_dict of the loader: ")


@pytest.mark.parametrize("num_good", [0, 2])
def test_lengths_that_cannot_be_read_end_announcing_with_one_line(
    num_good: int, caplog: pytest.LogCaptureFixture
) -> None:
    announced = Announced()
    loader = StepLoader(
        range(5),
        lengths=lambda number: read_lengths([1] * 2 if number < num_good else None),
        find_announcer=lambda: announced,
    )
    for _ in loader:
        announced.train()
    assert list(announced.work) == [7, 8][:num_good]
    assert [line.partition(": lengths")[0] for line in caplog.messages] == [
        "steps are no longer announced"
    ]


def test_lengths_are_lists_tensors_of_the_host_or_one_number() -> None:
    assert read_lengths([3, 4]) == read_lengths(torch.tensor([3, 4])) == [3.0, 4.0]
    assert read_lengths(512) == read_lengths(torch.tensor(512)) == [512.0]
    assert read_lengths(1.25) == 1.25
    # Numbers without a dimension are numbers alike.
    for whole in (np.int64(512), np.array(512), torch.tensor(512, dtype=torch.int32)):
        assert read_lengths(whole) == [512.0]
        assert read_lengths([whole, 3]) == [512.0, 3.0]
        assert split_lengths([whole, 3], 2) == [[512.0], [3.0]]
    for factor in (np.float32(1.25), np.float64(1.25), np.array(1.25), torch.tensor(1.25)):
        assert read_lengths(factor) == 1.25
    assert read_lengths(np.array([3, 4])) == [3.0, 4.0]
    for text in ("12", b"ab", ["12"], np.array("12"), [[3, 4]], {3: 4}):
        with pytest.raises(TypeError, match=r"^lengths must be numbers, not "):
            read_lengths(text)
    for on_device in (torch.empty(2, device="meta"), [torch.empty((), device="meta")]):
        with pytest.raises(ValueError, match=r"^lengths must be on the host, not on meta$"):
            read_lengths(on_device)


def test_all_else_is_the_loaders() -> None:
    loader = Positioned(3)
    steps = looked_ahead(loader, Announced())
    assert (steps.size, len(steps)) == (3, 3)
    with pytest.raises(AttributeError):
        _ = steps.sampler
    assert copy.copy(steps).size == 3


class Prepared:
    """As a loader that accelerate has prepared: it knows the last batch before that is trained on.

    `Accelerator.accumulate` ends a step there; behind it the loader is not active any more.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.end_of_dataloader = False
        self.is_active = False

    def __iter__(self) -> Iterator[int]:
        self.is_active, self.end_of_dataloader = True, False
        for number in range(self._size):
            self.end_of_dataloader = number + 1 == self._size
            yield number
        self.is_active = False

    def state_dict(self) -> object:
        raise AttributeError("the loader in it has none")


@pytest.mark.parametrize("num_batches", [None, 1, 2, 3])
def test_a_loader_that_accelerate_has_prepared_is_at_its_end_where_it_would_be(
    num_batches: int | None,
) -> None:
    loader, announced, found = Prepared(5), Announced(), []
    for item in looked_ahead(loader, announced, num_batches=num_batches):
        for number in item if isinstance(item, list) else [item]:
            found.append((number, loader.end_of_dataloader, loader.is_active))
        announced.train()
    assert found == [(number, number == 4, True) for number in range(5)]
    assert not loader.is_active
    assert len(announced.work) == -(-5 // (num_batches or 1))


def test_a_loader_that_accelerate_has_prepared_is_not_at_its_end_before_the_last_list() -> None:
    loader, announced, found = Prepared(8), Announced(), []
    for batches in looked_ahead(loader, announced, num_batches=2):
        found.append((list.copy(batches), loader.end_of_dataloader))
        announced.train()
    assert found == [([0, 1], False), ([2, 3], False), ([4, 5], False), ([6, 7], True)]


@pytest.mark.parametrize("gives_lists", [True, False])
def test_the_next_step_is_read_batch_by_batch_while_this_one_runs(gives_lists: bool) -> None:
    loader, announced, num_read, positions = Counted(12), Announced(), [], []
    steps = looked_ahead(loader, announced, num_batches=4, gives_lists=gives_lists)
    batches = itertools.chain.from_iterable(steps) if gives_lists else steps
    for number in batches:
        num_read.append(loader.state["next"])
        positions.append(loader.state_dict()["next"])
        if number % 4 == 3:
            announced.train()
    assert num_read[:8] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert positions[:8] == [4, 4, 4, 4, 8, 8, 8, 8]
    # With the last batch of the step before.
    assert announced.announced_in == [(7, 7), (8, 7), (9, 8)]


def test_batches_taken_by_index_are_read_ahead_of_and_others_after_the_step() -> None:
    loader, announced, num_read = Counted(12), Announced(), []
    for batches in looked_ahead(loader, announced, num_batches=4):
        if batches[0] == 0:
            num_read = [(batches[index], loader.state["next"])[1] for index in (0, 1, -1)]
        announced.train()
    assert num_read == [5, 6, 8]
    # Of the second step none is taken but the first, so the third is read after it.
    assert announced.announced_in == [(7, 7), (8, 7), (9, 9)]


@pytest.mark.parametrize("looks_at_first", [False, True])
def test_lists_that_are_stacked_are_announced_in_time_from_the_third_on(
    looks_at_first: bool,
) -> None:
    announced = Announced()
    stacked: list[list[int]] = []
    source = Positioned(10)
    loader = looked_ahead(source, announced, num_batches=2)
    for batches in loader:
        if looks_at_first:  # as torch's default_collate does
            assert batches[0] == 2 * len(stacked)
        stacked.append(list.copy(batches))  # as C functions take them, by no method of the list
        # What a checkpoint has is the position after these batches.
        assert loader.state_dict()["next"] == 2 * len(stacked)
        announced.train()
    assert stacked == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert announced.announced_in == [(7, 7), (8, 8), (9, 8), (10, 9), (11, 10)]


def test_lists_of_batches_are_like_others() -> None:
    announced = Announced()
    found = []
    for batches in looked_ahead(range(8), announced, num_batches=4):
        assert (batches[1:3], len(batches)) == ([batches[1], batches[2]], 4)
        assert type(copy.deepcopy(batches)) is list
        assert type(batches)(number for number in batches[:2]) == batches[:2]
        found.append(batches[:])
        announced.train()
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert announced.work[8] == [[4], [5], [6], [7]]
    (first,) = looked_ahead(range(2), announced, num_batches=2)
    assert tree_map(lambda number: number + 1, first) == [1, 2]


def test_a_pipelines_microbatches_are_read_evenly() -> None:
    loader, announced, num_read = Counted(99), Announced(), []
    reader: MicrobatchReader[int] = MicrobatchReader(
        loader, lengths=int, announcer=announced, num_microbatches=lambda: 3
    )
    for _ in range(2):
        announced.train()
        for _ in range(3):
            next(reader)
            num_read.append(loader.state["next"])
    assert num_read == [2, 4, 6, 7, 8, 9]
    # With the last microbatch of each step.
    assert announced.work == {8: [[3.0], [4.0], [5.0]], 9: [[6.0], [7.0], [8.0]]}


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=5),  # microbatches of each step
    st.integers(0, 12),
)
def test_microbatches_are_read_within_steps_and_those_of_the_next_one_announced(
    numbers: list[int], size: int
) -> None:
    loader, announced, found, step = Positioned(size), Announced(), [], 0
    reader: MicrobatchReader[int] = MicrobatchReader(
        loader, lengths=int, announcer=announced, num_microbatches=lambda: numbers[step]
    )
    works = {}
    for step, number in enumerate(numbers):
        announced.train()  # as the step begins, the next one is the one after it
        read = list(itertools.islice(reader, number))
        works[announced.next_step - 1] = [[each] for each in read]
        found += read
        if len(read) < number:
            break
        if number >= max(numbers[: step + 1]):
            assert loader.state_dict()["next"] % size == len(found) % size
        else:  # what is read ahead is of a longer step
            assert loader.state_dict()["next"] % size <= len(found)
    assert found == list(range(size))[: len(found)]
    assert len(found) == min(size, sum(numbers[: step + 1]))
    # Of steps with as many microbatches as the one before.
    for announced_step, work in announced.work.items():
        assert (
            works.get(announced_step, work)[: len(work)]
            == work[: len(works.get(announced_step, work))]
        )


class Counted(Positioned):
    """Counts copies of its position."""

    num_copies = 0

    def state_dict(self) -> dict[str, int]:
        self.num_copies += 1
        return self.state


def test_a_position_asked_for_within_a_step_is_that_before_the_step() -> None:
    loader, announced, positions = Positioned(9), Announced(), []
    reader: MicrobatchReader[int] = MicrobatchReader(
        loader, lengths=int, announcer=announced, num_microbatches=lambda: 2
    )
    for _ in range(3):
        announced.train()
        for _ in range(2):
            next(reader)
            positions.append(loader.state_dict()["next"])
    assert positions == [0, 2, 2, 4, 4, 6]


def test_a_reader_goes_on_where_its_iterator_was_set() -> None:
    stream, announced = Stream(99), Announced()
    reader: MicrobatchReader[int] = MicrobatchReader(
        stream, lengths=int, announcer=announced, num_microbatches=lambda: 2
    )
    announced.train()
    assert [next(reader), next(reader)] == [0, 1]
    stream.load_state_dict({"next": 50, "epoch": 0})
    assert stream.state_dict()["next"] == 50
    announced.train()
    assert next(reader) == 50
    assert stream.state_dict()["next"] == 50
    assert next(reader) == 51
    assert stream.state_dict()["next"] == 52


def test_a_reader_that_was_set_elsewhere_forgets_what_the_iterator_raised_ahead() -> None:
    stream, announced = Stream(99, fails_at=3), Announced()
    reader: MicrobatchReader[int] = MicrobatchReader(
        stream, lengths=int, announcer=announced, num_microbatches=lambda: 2
    )
    announced.train()
    assert [next(reader), next(reader)] == [0, 1]
    stream.load_state_dict({"next": 50, "epoch": 0})
    announced.train()
    assert [next(reader), next(reader)] == [50, 51]


def test_a_reader_of_a_loader_that_was_set_elsewhere_does_not_hide_where() -> None:
    loader, announced = Restarted(99), Announced()
    reader: MicrobatchReader[int] = MicrobatchReader(
        loader, lengths=int, announcer=announced, num_microbatches=lambda: 2
    )
    announced.train()
    assert [next(reader), next(reader)] == [0, 1]
    loader.load_state_dict({"next": 50, "epoch": 7})
    announced.train()
    assert next(reader) == 2  # of the pass that was begun
    assert loader.state_dict() == {"next": 50, "epoch": 7}


def test_an_exception_of_the_loader_comes_with_its_microbatch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    announced = Announced()
    reader: MicrobatchReader[int] = MicrobatchReader(
        Positioned(8, fails_at=3),
        lengths=lambda number: None,
        announcer=announced,
        num_microbatches=lambda: 1,
    )
    found = []
    with pytest.raises(OSError, match="this file is broken"):
        for number in reader:
            found.append(number)
            announced.train()
    assert found == [0, 1, 2]
    assert len(caplog.messages) == 1  # of lengths that are none


def test_a_batch_is_split_as_torch_splits_it() -> None:
    for size, num_microbatches in ((8, 4), (7, 3), (2, 4)):
        lengths = [float(number) for number in range(size)]
        parts = torch.tensor_split(torch.tensor(lengths), num_microbatches)
        assert split_lengths(lengths, num_microbatches) == [part.tolist() for part in parts]
    assert split_lengths([[3, 1], torch.tensor([2])], 2) == [[3.0, 1.0], [2.0]]
    assert split_lengths([[3], 1.5], 2) == [[3.0], 1.5]
    assert split_lengths(1.5, 2) == [1.5, 1.5]
    with pytest.raises(ValueError, match=r"^1 entries for 2 microbatches$"):
        split_lengths([[3, 1]], 2)
