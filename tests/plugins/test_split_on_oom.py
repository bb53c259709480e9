import dataclasses
import pickle

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches
from lightloop.toolkit import batch_size
from lightloop_plugins.split_on_oom.pieces import cut


class Small(TinyClassifier):
    """Has memory for batches of so many samples; ``tried`` has the size of each attempt."""

    room = 16
    where = "forward"

    def __init__(self):
        super().__init__()
        self.tried, self.drawn = [], []

    def training_step(self, batch, batch_idx):
        self.tried.append(len(batch[0]))
        if self.where == "forward" and len(batch[0]) > self.room:
            torch.rand(3)
            raise torch.OutOfMemoryError("out of memory, says the test")
        self.drawn.append(torch.rand(1).item())
        loss = super().training_step(batch, batch_idx)
        if self.where == "backward" and len(batch[0]) > self.room:
            self.net[0].weight.register_hook(self.fail)
        return loss

    def fail(self, gradient):
        self.net[0].weight._backward_hooks.clear()
        raise torch.OutOfMemoryError("out of memory, says the test")


def small(room, where="forward"):
    torch.manual_seed(0)
    module = Small()
    module.room, module.where = room, where
    torch.manual_seed(1)
    return module


def fit(module, data, *plugins, split=True, **options):
    trainer = Trainer(["-*", *plugins], split_on_oom=split, **options)
    trainer.fit(module, data)
    return trainer


def plain(data, factor=1):
    torch.manual_seed(0)
    module = TinyClassifier()
    optimizer = module.configure_optimizers()
    for start in range(0, len(data), factor):
        window = data[start : start + factor]
        optimizer.zero_grad()
        for x, y in window:
            (cross_entropy(module(x), y) / len(window)).backward()
        optimizer.step()
    return module


def assert_close(ours, theirs):
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_c75_the_original_is_cut_into_2_4_8_pieces_whose_mean_gradient_is_the_whole_one(where):
    data = classification_batches(1, size=16)
    module = small(1, where)
    trainer = fit(module, data)
    assert module.tried == [16, 8, 4, 2, *[1] * 16]
    assert trainer.plugins[0].pieces == 16
    assert_close(module, plain(data))


def test_without_it_the_error_is_the_users():
    with pytest.raises(torch.OutOfMemoryError):
        fit(small(1), classification_batches(1), split=False)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize(("size", "room"), [(8, 3), (7, 2), (5, 4)])
def test_it_works_in_windows_and_with_sizes_that_do_not_divide(where, factor, size, room):
    data = classification_batches(4, size=size)
    module = small(room, where)
    fit(module, data, accumulate_grad_batches=factor)
    assert_close(module, plain(data, factor))


def test_what_was_needed_once_is_used_from_then_on():
    module = small(4)
    fit(module, classification_batches(3, size=8))
    assert module.tried == [8, 4, 4, 4, 4, 4, 4]
    trainer = fit(module := small(8), classification_batches(2, size=8))
    assert module.tried == [8, 8]
    assert trainer.plugins[0].pieces == 1


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_random_numbers_are_rewound_for_each_attempt(where):
    module = small(4, where)
    fit(module, classification_batches(1, size=16))
    torch.manual_seed(1)
    assert module.drawn[-4:] == [torch.rand(1).item() for _ in range(4)]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_logged_values_are_those_of_the_pieces_that_went_well(where):
    seen = []

    class look(Plugin):
        name = "look"

        @hookimpl
        def after_step(self, loop):
            seen.append(
                (
                    len(loop.metrics.step["loss"].pairs),
                    float(loop.metrics.step["loss"].value()),
                    float(loop.loss.detach()),
                )
            )

    data = classification_batches(1, size=8)
    fit(small(2, where), data, look())
    torch.manual_seed(0)
    module = TinyClassifier()
    expected = cross_entropy(module(data[0][0]), data[0][1]).item()
    ((count, logged, loss),) = seen
    assert count == 4
    assert logged == loss == pytest.approx(expected, rel=1e-6)


def test_it_is_had_beside_the_default_plugins():
    module = small(4)
    Trainer(split_on_oom=True, enable_progress_bar=False, enable_checkpointing=False).fit(
        module, classification_batches(1, size=16)
    )
    assert module.tried == [16, 8, 4, 4, 4, 4]


def test_it_is_refused_where_the_module_optimizes_by_itself():
    module = small(4)
    module.automatic_optimization = False
    with pytest.raises(ValueError, match="optimizes by itself"):
        Trainer(["-*", "manual_optimization"], split_on_oom=True).fit(module, classification_batches(1))


def test_memory_that_lacks_for_a_single_sample_is_the_users_error():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fit(small(0), classification_batches(1, size=4))
    assert "split_on_oom: even with this batch of 4 cut into 4 pieces" in caught.value.__notes__


def test_other_errors_are_left_alone():
    class broken(Small):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        fit(broken(), classification_batches(1))


class Weighted(Module):
    """Reports how many entries are scored; its loss is their mean."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def training_step(self, batch):
        if len(batch["x"]) > 1:
            raise torch.OutOfMemoryError("out of memory, says the test")
        mask = batch["mask"]
        return {"loss": ((batch["x"] * self.w) * mask).sum() / mask.sum(), "weight": mask.sum()}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1.0)


def test_pieces_count_by_the_weight_that_the_step_reports():
    mask = torch.tensor([[1.0, 1, 1], [1, 0, 0]])
    x = torch.tensor([[1.0, 2, 3], [5, 6, 7]])
    module = Weighted()
    fit(module, [{"x": x, "mask": mask, "id": ["a", "b"]}])
    torch.testing.assert_close(module.w, 1 - (x * mask).sum(0) / 4)


def test_a_loss_that_others_change_and_a_loss_that_is_scaled_count_once():
    class double(Plugin):
        name = "double"

        @hookimpl
        def after_forward(self, loop):
            loop.loss = loop.loss * 2

    class scale(Plugin):
        name, tags = "scale", ("precision",)

        @hookimpl(wrapper=True)
        def backward(self, loop):
            loss, loop.loss = loop.loss, loop.loss * 1024
            try:
                return (yield)
            finally:
                loop.loss = loss

        @hookimpl
        def before_step(self, loop):
            for gradient in loop.gradients:
                gradient.div_(1024)

    data = classification_batches(2)
    for where in ("forward", "backward"):
        split, whole = small(3, where), small(16)
        fit(split, data, double(), scale())
        fit(whole, data, double(), scale())
        assert_close(split, whole)


def test_a_step_without_a_loss_in_some_pieces_leaves_them_out():
    class picky(Small):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 0 or batch[1][0] == 0 else loss

    data = classification_batches(2, size=4)
    module = small(1)
    module.__class__ = picky
    fit(module, data)
    kept = [index for index, label in enumerate(data[1][1]) if label != 0]
    assert 0 < len(kept) < 4
    assert_close(module, plain([(data[1][0][kept], data[1][1][kept])]))


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    tags: list[str]


def parts(batch, pieces):
    return [part for part, _ in cut(batch, batch_size(batch), pieces)]


class Declared:
    def __init__(self, batch_size):
        self.batch_size = batch_size


def test_batches_of_many_forms_are_cut():
    x = torch.arange(4.0)
    assert [part.tolist() for part in parts(x, 2)] == [[0, 1], [2, 3]]
    assert [len(part) for part in parts(torch.arange(7), 4)] == [1, 2, 2, 2]
    assert len(parts(torch.arange(3), 8)) == 3
    first, _ = parts({"x": x, "y": (x, torch.tensor(1.0)), "names": list("abcd"), "n": None}, 2)
    assert first["x"].tolist() == first["y"][0].tolist() == [0, 1]
    assert (first["y"][1].item(), first["names"], first["n"]) == (1.0, ["a", "b"], None)
    _, second = parts(Sample(x, list("abcd")), 2)
    assert (second.x.tolist(), second.tags) == ([2, 3], ["c", "d"])


@pytest.mark.parametrize("make", [lambda n: pack_sequence([torch.ones(2)] * n), Declared])
def test_a_batch_of_which_the_samples_cannot_be_taken_is_refused(make):
    with pytest.raises(ValueError, match=r"part '1' is a .*, and cannot be cut into 4 samples. Define cut_batch"):
        parts((torch.ones(4), make(4)), 2)


class Sums(Module):
    """Adds up all that is in a batch, for which there is memory if it is of few samples; ``seen`` has their numbers."""

    room = 2

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch):
        samples = list(batch)
        self.seen.append(len(samples))
        if len(samples) > self.room:
            raise torch.OutOfMemoryError("out of memory, says the test")
        return self.w * sum(sample.sum() for sample in samples) / len(samples)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1.0)


class CutsItself(Sums):
    def cut_batch(self, batch, pieces):
        size = -(-len(batch) // pieces)
        return [batch[first : first + size] for first in range(0, len(batch), size)]

    def batch_size(self, batch):
        return len(batch)


IMAGES = [torch.full((3, 2, 4), value) for value in (1.0, 2.0, 3.0, 4.0)]


@pytest.mark.parametrize(("module", "data"), [(Sums, IMAGES), (CutsItself, IMAGES), (CutsItself, tuple(IMAGES))])
def test_a_list_of_images_is_cut_by_images(module, data):
    module = module()
    fit(module, [data])
    assert (module.seen, module.w.item()) == ([4, 2, 2], -60.0)


@pytest.mark.parametrize(
    "data",
    [tuple(IMAGES), IMAGES[:2], {"a": torch.ones(4, 5), "b": torch.ones(5, 4)}, [[IMAGES[0], 1], [IMAGES[1], 0]]],
)
def test_a_batch_of_unknown_size_is_an_error_that_says_what_to_define(data):
    class Lacks(Sums):
        def training_step(self, batch):
            raise torch.OutOfMemoryError("out of memory, says the test")

    with pytest.raises(ValueError, match=r"memory ran out, and split_on_oom cannot know how many samples") as caught:
        fit(Lacks(), [data])
    assert "Define cut_batch(self, batch, pieces) on the module" in str(caught.value)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_pieces_of_unknown_size_are_weighed_by_the_step_or_refused():
    class Unknown(CutsItself):
        batch_size = None

    with pytest.raises(ValueError, match="cannot know how many samples are in a piece"):
        fit(Unknown(), [tuple(IMAGES)])

    class Weighs(Unknown):
        def training_step(self, batch):
            return {"loss": super().training_step(batch), "weight": len(batch)}

    module = Weighs()
    fit(module, [tuple(IMAGES)])
    assert module.w.item() == -60.0
    module.room = 0
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fit(module, [tuple(IMAGES)])
    assert "split_on_oom: even with this batch of 4 cut into 4 pieces" in caught.value.__notes__


def test_optimizers_that_replay_are_refused():
    class replays(TinyClassifier):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(ValueError, match="split_on_oom cannot be had with LBFGS"):
        fit(replays(), classification_batches(1))


def test_it_pickles_after_a_run():
    trainer = fit(small(2), classification_batches(1))
    assert pickle.loads(pickle.dumps(trainer)).plugins[0].pieces == 4
