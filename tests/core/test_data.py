"""Loaders: how many batches, which is the last, which of several is meant; and how large a batch is."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightloop import batch_size, size_of, with_is_last
from lightloop.data import as_loaders, check_loader

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
    known = sized or limit is None or limit <= count
    if pairs and known:
        assert [last for _, last in pairs] == [False] * (len(pairs) - 1) + [True]
    if not sized and limit is not None:
        assert batches.drawn <= limit


def test_c71_no_more_than_the_limit_is_drawn_and_the_next_is_not_lost():
    shared = Drawn(10)
    assert list(with_is_last(shared, limit=4)) == [(1, False), (2, False), (3, False), (4, True)]
    assert shared.drawn == 4
    assert next(shared) == 5


def test_c71_nothing_is_nothing():
    assert list(with_is_last(Drawn(0))) == list(with_is_last([])) == list(with_is_last(Drawn(3), limit=0)) == []


def test_only_where_no_end_is_known_one_is_fetched_ahead():
    for batches, limit, ahead in ((Drawn(5), None, 1), (Drawn(5), 5, 0)):
        pairs = with_is_last(batches, limit=limit)
        next(pairs)
        assert batches.drawn == 1 + ahead


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


Pair = namedtuple("Pair", "x y")


@dataclass
class Batch:
    label: str
    x: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (X, 3),
        (torch.tensor(1.0), 1),
        ((X, torch.zeros(5)), 3),
        ([torch.zeros(5), X], 5),
        ({"text": "a", "x": X}, 3),
        (Pair(X, X), 3),
        (Batch("a", X), 3),
        ({"a": {"b": [X]}}, 3),
        ("text", 1),
        (None, 1),
        ([], 1),
        (7, 1),
    ],
)
def test_how_large_a_batch_is(batch, size):
    assert batch_size(batch) == size
