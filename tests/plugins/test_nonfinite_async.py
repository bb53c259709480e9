import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightloop import Module, Plugin, Trainer, World, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches

NAN = math.nan


def batches(*values):
    return [torch.tensor(float(value)) for value in values]


def fit(module, data, **options):
    trainer = Trainer(["-*", *options.pop("plugins", ())], **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = trainer.fit(module, data)
    return result, [str(warning.message) for warning in warned], trainer


def test_zero_keeps_bad_gradients_from_the_parameters():
    module = Probe()
    result, warned, _ = fit(module, batches(1, NAN, math.inf, 4, 5), nonfinite_async="zero", nonfinite_async_every=3)
    assert (module.w.item(), result.global_step) == (-10.0, 5)
    assert warned == ["nonfinite_async: 2 of the last steps had gradients of NaN or infinity; what was done: zero"]
    assert result.metrics["nonfinite_events"] == 2


def test_an_event_of_the_last_steps_is_told_at_the_end():
    _, warned, _ = fit(Probe(), batches(1, 2, NAN), nonfinite_async="zero")
    assert len(warned) == 1


def test_momentum_goes_on_as_documented():
    module = Probe(momentum=0.5)
    fit(module, batches(8, NAN), nonfinite_async="zero")
    assert module.w.item() == -(8 + 4)


def test_warn_leaves_them():
    module = Probe()
    _, warned, _ = fit(module, batches(1, NAN, 3, 4), nonfinite_async="warn", nonfinite_async_every=2)
    assert module.w.isnan()
    assert len(warned) == 1


def test_stop_is_late_and_the_weights_stay_good():
    module = Probe()
    data = batches(1, NAN, 3, 4, 5, 6, 7, 8, 9, 10)
    result, _, _ = fit(module, data, nonfinite_async="stop", nonfinite_async_every=4)
    assert (result.status, result.global_step) == ("stopped", 5)
    assert module.w.item() == -(1 + 3 + 4 + 5)


def test_the_limit_is_of_consecutive_windows():
    data = [NAN, 1, NAN, 1, NAN, NAN, 1, 1, 1, 1]
    limit = {"nonfinite_async": "zero", "nonfinite_async_every": 1}
    result, _, _ = fit(Probe(), batches(*data), nonfinite_async_limit=2, **limit)
    assert result.status == "stopped"
    assert "2 steps in a row" in result.reason
    assert fit(Probe(), batches(*data), nonfinite_async_limit=3, **limit)[0].status == "finished"


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.5}])
def test_where_nothing_is_wrong_nothing_changes(options):
    data = classification_batches()
    found = []
    for extra in ({}, {"nonfinite_async": "zero"}):
        torch.manual_seed(0)
        module = TinyClassifier()
        fit(module, data, **options, **extra)
        found.append(list(module.parameters()))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_sparse_gradients():
    class Sparse(Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 1, sparse=True)

        def training_step(self, batch):
            return (self.table(torch.tensor([0, 0, 2])) * batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1.0)

    module = Sparse()
    before = module.table.weight.detach().clone()
    fit(module, batches(1, NAN), nonfinite_async="zero")
    assert torch.equal(before - module.table.weight.detach(), torch.tensor([[2.0], [0.0], [1.0]]))


class Reads(TorchDispatchMode):
    """Counts the operations by which a number leaves its device."""

    def __init__(self):
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            self.reads += 1
        return function(*args, **(kwargs or {}))


class Quiet(Probe):
    """A Probe that keeps no number of its batches."""

    def training_step(self, batch):
        return batch * self.w


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({"nonfinite_async": "zero"}, 0),
        ({"nonfinite_async": "zero", "gradient_clip_val": 1.0, "track_grad_norm": 2}, 0),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "adaptive"}, 0),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, 0),
        ({"precision": "bf16-mixed", "gradient_clip_val": 1.0}, 0),
        ({"nonfinite": "skip_step", "nonfinite_watch": ["grad"]}, 100),  # the stated cost: one per step
        ({"nonfinite": "skip_step"}, 200),  # and one per batch
        ({"terminate_on_nan": True}, 300),
        ({"precision": "16-mixed"}, 100),
    ],
    ids=str,
)
def test_c57_what_waits_for_the_device_and_how_often(options, reads):
    trainer = Trainer(["-*"], **options)
    with Reads() as counted:
        trainer.fit(Quiet(lr=1e-3), [torch.tensor(1.0)] * 100)
        assert counted.reads == reads


def test_all_ranks_drop_what_one_has():
    class Other(World):
        """The other rank has a bad gradient at the second step."""

        size = 2
        asked = 0

        def reduce(self, value, op="sum"):
            if op != "max":
                return value
            self.asked += 1
            return torch.maximum(value, torch.tensor(int(self.asked == 2)))

    class Joins(Plugin):
        name = "joins"

        @hookimpl
        def setup(self, loop):
            loop.world = Other()

    module = Probe()
    fit(module, batches(1, 2, 3), plugins=[Joins()], nonfinite_async="zero")
    assert module.w.item() == -4.0


def test_its_counts_survive_a_restart_and_a_new_fit_starts_clean():
    _, _, trainer = fit(Probe(), batches(1, NAN, NAN), nonfinite_async="zero")
    (plugin,) = trainer.plugins
    state = plugin.state_dict()
    assert state["counts"].tolist() == [2, 2, 2]
    copy = pickle.loads(pickle.dumps(plugin))
    copy.load_state_dict(state)
    assert copy.state_dict()["counts"].tolist() == [2, 2, 2]
    trainer.fit(Probe(), probe_batches())
    assert plugin.state_dict()["counts"].tolist() == [0, 0, 0]


def test_the_two_policies_exclude_each_other():
    with pytest.raises(Exception, match="cannot both be live"):
        Trainer(nonfinite="warn", nonfinite_async="zero")


@pytest.mark.parametrize("option", ["limit", "every"])
def test_nonsense_is_refused_at_construction(option):
    with pytest.raises(ValueError, match=f"nonfinite_async_{option}"):
        Trainer(nonfinite_async="zero", **{f"nonfinite_async_{option}": 0})
