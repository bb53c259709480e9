"""Loaders: how many batches, which is the last, which of several is meant; and how large a batch is."""

from __future__ import annotations

import warnings

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightloop.inputs.data import as_loaders, check_loader
from lightloop.toolkit import size_of, with_is_last

X = torch.zeros(3, 2)


class Drawn:
    """An iterator of unknown length that counts what is drawn from it."""

    def __init__(self, count):
        self.left, self.drawn = count, 0

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left, self.drawn = self.left - 1, self.drawn + 1
        return self.drawn


@given(st.integers(0, 6), st.integers(0, 7), st.none() | st.integers(0, 7), st.booleans())
def test_each_batch_and_whether_it_is_the_last(count, skip, limit, sized):
    batches = list(range(1, count + 1)) if sized else Drawn(count)
    end = count if limit is None else min(count, limit)
    pairs = list(with_is_last(batches, skip, limit))
    assert [batch for batch, _ in pairs] == list(range(skip + 1, end + 1))
    known = sized or (limit is not None and limit <= count)
    assert [last for _, last in pairs] == [False] * (len(pairs) - 1) + [known] * bool(pairs)
    if not sized and limit is not None:
        assert batches.drawn <= limit


def test_c71_no_more_than_the_limit_is_drawn_and_the_next_is_not_lost():
    shared = Drawn(10)
    assert list(with_is_last(shared, limit=4)) == [(1, False), (2, False), (3, False), (4, True)]
    assert shared.drawn == 4
    assert next(shared) == 5


def test_c71_nothing_is_nothing():
    assert list(with_is_last(Drawn(0))) == list(with_is_last([])) == list(with_is_last(Drawn(3), limit=0)) == []


@pytest.mark.parametrize("limit", [None, 5])
def test_nothing_is_fetched_ahead_but_where_a_loader_says_so_and_no_end_is_known(limit):
    for ahead in (False, True):
        batches = Drawn(5)
        batches.reads_ahead = ahead
        pairs = with_is_last(batches, limit=limit)
        next(pairs)
        assert batches.drawn == 1 + (ahead and limit is None)
        assert [last for _, last in pairs] == [False] * 3 + [ahead or limit is not None]


class Lying:
    """Says by ``len()`` another number than it gives."""

    def __init__(self, says, gives):
        self.says, self.gives, self.given = says, gives, 0

    def __len__(self):
        return self.says

    def __iter__(self):
        for number in range(self.gives):
            self.given += 1
            yield number


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize(
    ("says", "gives", "limit", "read", "words"),
    [
        (4, 10, None, 5, "has 4 batches, and has more: it ends after 4, and the rest is not used"),
        (4, 10, 6, 5, "has 4 batches, and has more"),
        (4, 10, 4, 4, None),
        (4, 10, 2, 2, None),
        (10, 4, None, 4, "has 10 batches, and gave 4: it ended there, and schedules and total_steps counted more"),
        (10, 4, 6, 4, "has 10 batches, and gave 4"),
        (10, 4, 4, 4, None),
        (4, 4, None, 4, None),
    ],
)
def test_a_wrong_length_is_told_once_and_the_end_is_whichever_comes_first(says, gives, limit, read, words, skip):
    loader, told = Lying(says, gives), set()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            loader.given = 0
            pairs = list(with_is_last(loader, skip, limit, "the data", told))
            assert [batch for batch, _ in pairs] == list(range(skip, min(says, gives, limit or 99)))
            assert [last for _, last in pairs][-1] == (min(says, limit or 99) <= gives)
            assert loader.given == (read if not (words and told and _) else min(read, says))
    assert [str(each.message).startswith("the data (Lying) says by len() that it " + words) for each in said] == (
        [True] if words else []
    )


class Endless(IterableDataset):
    def __iter__(self):
        yield from range(3)


def test_how_many_batches_a_loader_has():
    assert size_of([1, 2]) == 2
    assert size_of(DataLoader(TensorDataset(X), batch_size=2)) == 2
    assert size_of(DataLoader(Endless())) is None
    assert size_of(Drawn(3)) is None
    assert size_of(x for x in ()) is None


def test_one_several_or_none():
    one, two = DataLoader(TensorDataset(X)), DataLoader(TensorDataset(X))
    assert as_loaders(None) == {}
    assert as_loaders({}) == {}
    assert as_loaders(one) == {None: one}
    assert as_loaders([one]) == {None: one}
    assert as_loaders([one, two]) == as_loaders((one, two)) == {"0": one, "1": two}
    assert as_loaders({"a": one, 3: two}) == {"a": one, "3": two}
    assert as_loaders({"a": [X], "b": [X, X]}) == {"a": [X], "b": [X, X]}
    drawn = Drawn(1)
    assert as_loaders(drawn) == {None: drawn}


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [X, X],
        [(X, X), (X, X)],
        [[X, X], [X, X]],
        [{"x": X}, {"x": X}],
        ["a", "b"],
        [numpy.zeros(3), numpy.zeros(3)],
        [1, 2],
    ],
)
def test_a_list_of_batches_is_one_loader(batches):
    (loader,) = as_loaders(batches).values()
    assert loader is batches


@pytest.mark.parametrize("data", [3, None, X, "abc", b"abc", {"a": [1]}])
def test_what_cannot_be_read(data):
    with pytest.raises(TypeError, match=r"^the data to validate must "):
        check_loader(data, "the data to validate")


@pytest.mark.parametrize("data", [[], [X], range(3), Drawn(2), DataLoader(TensorDataset(X)), Endless()])
def test_what_can_be_read(data):
    check_loader(data, "the data")
