"""How many samples are in a batch: known, or said to be unknown, and never guessed."""

from __future__ import annotations

import dataclasses
from collections import UserDict, namedtuple

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from lightloop import Module, Trainer
from lightloop.inputs.samples import is_collated
from lightloop.toolkit import Limited, batch_size, take_samples

zeros = torch.zeros
IMAGE = zeros(3, 2, 4)
Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Batch:
    label: str
    x: torch.Tensor


class Plain:
    def __init__(self, **parts):
        vars(self).update(parts)


class Graphs:
    """As PyTorch Geometric has them: 7 nodes, 9 edges, 2 graphs."""

    num_graphs = 2

    def __init__(self):
        self.x, self.edges = zeros(7, 16), zeros(2, 9)


class Slots:
    __slots__ = ("x",)


BOXES = [{"boxes": zeros(count, 4), "labels": zeros(count)} for count in (5, 2)]
KNOWN = {
    "a tensor": (zeros(4, 5), 4),
    "text first in a mapping": ({"id": list("abcd"), "x": zeros(4, 5)}, 4),
    "text first in a tuple": ((list("abcd"), zeros(4, 5)), 4),
    "text first in a dataclass": (Batch("a", zeros(4)), 4),
    "a named tuple": (Pair("a", zeros(4)), 4),
    "a mapping of another class": (UserDict(x=zeros(4, 2), y=zeros(4)), 4),
    "an object with attributes": (Plain(name="a", x=zeros(4), y=[zeros(4, 1)]), 4),
    "a scalar first": ([torch.tensor(1.0), zeros(4, 5)], 4),
    "an empty list first": (([], zeros(4, 5)), 4),
    "a list of other values beside tensors": ({"size": [224, 224], "x": zeros(4, 5)}, 4),
    "x and y of one shape": ((zeros(8, 1), zeros(8, 1)), 8),
    "x alone in a list": ([zeros(32, 10)], 32),
    "deep inside": ({"a": {"b": [({"c": zeros(4, 1)},)]}, "y": zeros(4)}, 4),
    "views of images": ([zeros(8, 3, 9, 9)] * 6 + [zeros(8, 3, 7, 7)] * 2, 8),
    "a list of images": ([IMAGE] * 4, 4),
    "as many images as channels": ([IMAGE] * 3, 3),
    "images and labels": ({"images": [IMAGE] * 2, "labels": zeros(2)}, 2),
    "images and texts": (([IMAGE] * 2, ["cat", "dog"]), 2),
    "images and boxes": (((IMAGE, IMAGE), tuple(BOXES)), 2),
    "sequences of unlike lengths": ([zeros(5), zeros(3), zeros(7), zeros(9)], 4),
    "a mapping per sample": ([{"image": IMAGE, "height": 480}] * 4, 4),
    "pairs of texts and labels": ([("a", 1), ("b", 2)], 2),
    "objects of which nothing is known": ([object()] * 3, 3),
    "texts": (["a", "b"], 2),
    "numbers": ([1, 2, 3], 3),
    "numpy": ({"x": numpy.zeros((4, 2)), "y": numpy.zeros(4)}, 4),
    "numpy's texts and numbers": ([numpy.float32(1), numpy.array(["a", "b"])], 2),
    "packed sequences": (pack_sequence([zeros(3), zeros(2)]), 2),
    "packed sequences beside": ((pack_sequence([zeros(3), zeros(2)]), zeros(2)), 2),
    "what is declared": (Graphs(), 2),
    "what is declared by a tuple": (Plain(batch_size=torch.Size([6]), x=zeros(6, 2)), 6),
    "a nested tensor": (torch.nested.nested_tensor([zeros(3), zeros(2)], layout=torch.jagged), 2),
    "no samples": ({"x": zeros(0, 5)}, 0),
    "one scalar": (torch.tensor(1.0), 1),
    "one number": (7, 1),
    "one text": ("abc", 1),
    "one sample of scalars": ({"text": "a", "y": torch.tensor(1)}, 1),
}
UNKNOWN = {
    "tensors that disagree": (zeros(4, 5), zeros(5, 4)),
    "time first": (zeros(7, 32), zeros(9, 32)),
    "a hidden state": {"x": zeros(32, 10), "hidden": zeros(2, 32, 64)},
    "weights of classes": {"x": zeros(32, 10), "y": zeros(32), "weights": zeros(3)},
    "two images, or three pairs": [IMAGE, IMAGE],
    "one image, or three samples": [IMAGE],
    "four vectors, or seven samples of four fields": [zeros(7)] * 4,
    "images in a tuple": (IMAGE,) * 4,
    "two boxes, or two loaders": BOXES,
    "two loaders": [[zeros(32), zeros(32, 2)], [zeros(16), zeros(16, 2)]],
    "an anchor and another": [{"ids": zeros(8, 3)}, {"ids": zeros(8, 3)}],
    "nothing": None,
    "an empty list": [],
    "an empty mapping": {},
    "an object": Slots(),
    "an object beside a number": {"o": object(), "y": torch.tensor(1.0)},
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known(name):
    batch, size = KNOWN[name]
    assert batch_size(batch) == size


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_not_guessed(name):
    assert batch_size(UNKNOWN[name]) is None


def test_what_contains_itself():
    batch = {"x": zeros(4)}
    batch["self"] = batch
    assert batch_size(batch) == 4


def test_torchs_own_collate_makes_no_list_of_samples_that_are_tensors():
    pairs = DataLoader(TensorDataset(zeros(7, 6, 5), zeros(7, 6, 5)), 4)
    assert [batch_size(batch, collated=True) for batch in pairs] == [4, 3]
    assert [batch_size(batch) for batch in pairs] == [None, None]
    assert is_collated(pairs)
    assert is_collated(Limited(pairs, 1))
    assert not is_collated(DataLoader(TensorDataset(zeros(7, 6)), 4, collate_fn=list))
    assert not is_collated([zeros(3)])


# -------------------------------------------------------------------------------- batches of which the size is known


def tensors(n):
    """A tensor or array of ``n`` samples; its other dimensions are unlike every n."""
    shapes = st.lists(st.sampled_from([11, 12, 13]), max_size=3)
    kinds = st.sampled_from([torch.zeros, torch.ones, numpy.zeros, lambda *s: torch.zeros(*s, dtype=torch.long)])
    return st.builds(lambda make, rest: make((n, *rest)) if make is numpy.zeros else make(n, *rest), kinds, shapes)


def samples(n):
    """A list with an item for each of ``n`` samples."""
    items = st.sampled_from(["a", 1, None, {"text": "a"}, ("a", 1), object()])
    ragged = st.builds(lambda: [zeros(14 + index, 2) for index in range(n)])
    return st.builds(lambda item: [item] * n, items) | ragged


BESIDE = st.sampled_from(
    [None, "text", 3, 0.5, torch.tensor(2.0), numpy.float64(1), [], ["names", "of"], (224, 224), {}]
)
"""What has nothing to do with samples."""


def containers(parts):
    """Any of the containers that a batch is made of, around ``parts``, of which at least one is there."""
    several = st.lists(parts, min_size=1, max_size=3)
    mapped = several.map(lambda values: {str(index): value for index, value in enumerate(values)})
    pairs = st.tuples(parts, parts)
    return st.one_of(
        mapped,
        mapped.map(UserDict),
        mapped.map(lambda values: Plain(**values)),
        pairs,
        pairs.map(lambda both: Pair(*both)),
        pairs.map(lambda both: Batch(*both)),
        parts.map(lambda part: ["text", part]),
    )


@st.composite
def batches(draw):
    """A batch and its size: tensors and lists of samples at any depth, with a tensor among them that decides."""
    n = draw(st.integers(5, 9))
    leaves = st.one_of(tensors(n), samples(n), BESIDE)
    tree = draw(st.recursive(leaves, containers, max_leaves=8))
    sure = draw(tensors(n))
    first = draw(st.booleans())
    return ({"sure": sure, "tree": tree} if first else (tree, sure)), n


@settings(max_examples=300, deadline=None)
@given(batches())
def test_any_batch_in_which_a_tensor_decides_is_counted_right(made):
    batch, n = made
    assert batch_size(batch) == n


@settings(max_examples=200, deadline=None)
@given(
    st.integers(5, 9).flatmap(
        lambda n: st.tuples(st.recursive(tensors(n) | samples(n), containers, max_leaves=6), st.just(n))
    )
)
def test_no_batch_is_counted_wrong(made):
    batch, n = made
    assert batch_size(batch) in (n, None)


@settings(max_examples=100, deadline=None)
@given(batches(), st.integers(1, 4))
def test_parts_have_the_samples_that_they_are_said_to_have(made, cut):
    batch, n = made
    try:
        parts = [take_samples(batch, n, *bounds) for bounds in ((0, cut), (cut, n))]
    except ValueError as error:
        assert "cut into" in str(error) or "could be samples" in str(error)  # noqa: PT017
        return
    sizes = [batch_size(part) for part in parts]
    assert all(size in (None, wanted) for size, wanted in zip(sizes, (cut, n - cut), strict=True))


# ------------------------------------------------------------------------------------------------ means over an epoch


class Logs(Module):
    """Logs the index of each batch over the epoch, where ``where`` says."""

    def __init__(self, where="training_step", **how):
        super().__init__()
        self.w, self.where, self.how = torch.nn.Parameter(zeros(())), where, how

    def note(self, where, index):
        if where == self.where:
            self.log("n", float(index), on_epoch=True, **self.how)

    def on_train_batch_start(self, batch, batch_idx):
        self.note("on_train_batch_start", batch_idx)

    def training_step(self, batch, batch_idx):
        self.note("training_step", batch_idx)
        return self.w * 1.0

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.note("on_train_batch_end", batch_idx)

    def on_validation_batch_start(self, batch, batch_idx):
        self.note("on_validation_batch_start", batch_idx)

    def validation_step(self, batch, batch_idx):
        self.note("validation_step", batch_idx)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1.0)


SIZES = (4, 4, 2)
TRAINING = ("on_train_batch_start", "training_step", "on_train_batch_end")
VALIDATION = ("on_validation_batch_start", "validation_step")
OPAQUE = [Slots() for _ in SIZES]


def mean(module, data, **options):
    trainer = Trainer(["-*", "callbacks", "log_every", "validation"], num_sanity_val_steps=0, max_epochs=2, **options)
    return trainer.fit(module, data, data).metrics["n"]


@pytest.mark.parametrize("where", TRAINING + VALIDATION)
def test_a_batch_counts_for_its_own_samples_wherever_it_is_logged(where):
    assert mean(Logs(where), [[zeros(size, 1)] for size in SIZES]) == pytest.approx(0.8)


@pytest.mark.parametrize("where", ["training_step", "validation_step"])
def test_a_mean_over_batches_of_unknown_size_is_told_once_and_counts_each_as_one(where):
    with pytest.warns(
        UserWarning, match=r"the mean of metric 'n' over the (epoch|pass) counts each batch as one"
    ) as told:
        assert mean(Logs(where), OPAQUE) == 1.0
    assert len(told) == 1
    said = str(told[0].message)
    assert "how many samples are in Slots" in said
    assert "batch 0): give log(..., weight=samples), or define Logs.batch_size(batch)" in said


def test_one_batch_of_unknown_size_makes_all_count_alike():
    for data in ([zeros(4), OPAQUE[0], zeros(2)], [OPAQUE[0], zeros(4), zeros(2)], [zeros(4), zeros(2), OPAQUE[0]]):
        with pytest.warns(UserWarning, match="counts each batch as one"):
            assert mean(Logs(), data) == 1.0


@pytest.mark.parametrize("reduce", ["sum", "min", "max", "last"])
def test_nothing_is_counted_for_what_is_no_mean(reduce):
    assert mean(Logs(reduce=reduce), OPAQUE) == {"sum": 3, "min": 0, "max": 2, "last": 2}[reduce]


def test_the_user_may_say_it():
    assert mean(Logs(weight=3), OPAQUE) == 1.0

    class Says(Logs):
        def batch_size(self, batch):
            return SIZES[OPAQUE.index(batch)]

    for where in TRAINING + VALIDATION:
        assert mean(Says(where), OPAQUE) == pytest.approx(0.8)
    Says.batch_size = lambda self, batch: "many"
    with pytest.raises(TypeError, match=r"Says.batch_size\(batch\) must return a whole number of samples, or None"):
        mean(Says(), OPAQUE)


def test_the_loader_helps_to_tell_fields_from_samples():
    images = [zeros(4, 6, 5), zeros(4, 6, 5), zeros(4, 6, 5), zeros(4, 6, 5)]
    fields = DataLoader(TensorDataset(zeros(10, 6, 5), zeros(10, 6, 5)), 4)
    assert mean(Logs(), fields) == pytest.approx(0.8)
    assert mean(Logs(), DataLoader([images[0]] * 10, 4, collate_fn=list), limit_train_batches=2) == 0.5


def test_a_module_with_a_number_called_batch_size_is_not_asked():
    module = Logs()
    module.batch_size = 64
    assert mean(module, [zeros(size) for size in SIZES]) == pytest.approx(0.8)
