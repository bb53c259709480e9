import pickle

import pytest
import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches


class Gradients(Module):
    """The batch is the gradient of ``w``, whatever its shape."""

    def __init__(self, weight, optimizer=None):
        super().__init__()
        self.w = nn.Parameter(weight)
        self.optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1.0))

    def training_step(self, batch):
        return (self.w * batch).sum()

    def configure_optimizers(self):
        return self.optimizer(self.parameters())


def clipped(gradient, weight=None, **options):
    """What is left of one gradient: the weights before minus those after a step of SGD with learning rate 1."""
    before = torch.zeros_like(gradient) if weight is None else weight
    module = Gradients(before.clone())
    Trainer(["-*"], **options).fit(module, [gradient])
    return before - module.w.detach()


def plain(model, data, clip, accumulate=1):
    optimizer = model.configure_optimizers()
    for start in range(0, len(data), accumulate):
        window = data[start : start + accumulate]
        optimizer.zero_grad()
        for x, y in window:
            (nn.functional.cross_entropy(model(x), y) / len(window)).backward()
        clip(model.parameters())
        optimizer.step()


@pytest.mark.parametrize("limit", [0.1, 1.0, 1e6])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_equals_torch_bit_for_bit(limit, accumulate, algorithm):
    torch.manual_seed(0)
    ours = TinyClassifier()
    torch.manual_seed(0)
    theirs = TinyClassifier()
    data = classification_batches(7)
    options = {"gradient_clip_algorithm": algorithm} if algorithm != "norm" else {}
    Trainer(["-*"], gradient_clip_val=limit, accumulate_grad_batches=accumulate, **options).fit(ours, data)
    torch_clip = nn.utils.clip_grad_norm_ if algorithm == "norm" else nn.utils.clip_grad_value_
    plain(theirs, data, lambda parameters: torch_clip(parameters, limit), accumulate)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_by_norm_and_by_value():
    gradient = torch.tensor([3.0, -4.0])
    assert torch.allclose(clipped(gradient, gradient_clip_val=1.0), torch.tensor([0.6, -0.8]))
    by_value = clipped(gradient, gradient_clip_val=3.5, gradient_clip_algorithm="value")
    assert by_value.tolist() == [3.0, -3.5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("algorithm", ["norm", "adaptive"])
def test_a_norm_that_is_not_finite_leaves_the_finite_gradients_alone(bad, algorithm):
    gradient = torch.tensor([[bad, 1.0], [300.0, 400.0]])
    weight = torch.tensor([[1.0, 1.0], [3.0, 4.0]])
    found = clipped(gradient, weight, gradient_clip_val=1.0, gradient_clip_algorithm=algorithm)
    assert found[0, 1] == 1.0
    assert found[1].tolist() == ([300.0, 400.0] if algorithm == "norm" else [3.0, 4.0])


def test_adaptive_clips_each_unit_by_its_weights():
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])
    gradient = torch.tensor([[30.0, 40.0], [3.0, 4.0], [0.3, 0.4]])
    found = clipped(gradient, weight, gradient_clip_val=0.1, gradient_clip_algorithm="adaptive", gradient_clip_eps=0.5)
    # Largest norms: 0.1 * 5, 0.1 * 0.5 (eps), 0.1 * 10 (not reached).
    assert torch.allclose(found, torch.tensor([[0.3, 0.4], [0.03, 0.04], [0.3, 0.4]]), atol=1e-6)


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (4, 3, 2, 2)])
def test_adaptive_equals_the_published_formula(shape):
    torch.manual_seed(1)
    weight, gradient = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64) * 3
    found = clipped(gradient, weight, gradient_clip_val=0.3, gradient_clip_algorithm="adaptive")
    axes = tuple(range(1, len(shape)))
    norms = lambda x: x.square().sum(axes, keepdim=True).sqrt() if axes else x.square().sum().sqrt()
    most = 0.3 * norms(weight).clamp(min=1e-3)
    right = torch.where(norms(gradient) > most, gradient * most / norms(gradient), gradient)
    assert torch.allclose(found, right, rtol=1e-12)


@pytest.mark.parametrize("algorithm", ["norm", "value", "adaptive"])
def test_sparse_gradients_are_clipped_as_dense_ones_are(algorithm):
    class Embedded(Module):
        def __init__(self, sparse):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(6, 3, sparse=sparse)

        def training_step(self, batch):
            return (self.table(batch) * 5).square().sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = [torch.tensor([1, 1, 4]), torch.tensor([0, 4, 4])]
    tables = []
    for sparse in (False, True):
        module = Embedded(sparse)
        Trainer(["-*"], gradient_clip_val=0.5, gradient_clip_algorithm=algorithm, accumulate_grad_batches=2).fit(
            module, batches
        )
        tables.append(module.table.weight.detach())
    # To 1e-6: a sparse norm adds up the elements of the rows that occur, a dense one those of all rows.
    assert torch.allclose(*tables, atol=1e-6)


class TwoParts(Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def training_step(self, batch, optimizer_idx):
        return batch * (self.a if optimizer_idx == 0 else self.b * 10)

    def configure_optimizers(self):
        return [torch.optim.SGD([self.a], lr=1.0), torch.optim.SGD([self.b], lr=1.0)]


def test_only_the_stepping_optimizers_gradients_are_clipped():
    module = TwoParts()
    trainer = Trainer(["-*"], gradient_clip_val=4.0)
    trainer.fit(module, [torch.tensor(3.0)])
    assert (module.a.item(), module.b.item()) == (-3.0, pytest.approx(-4.0))
    assert trainer.callback_metrics == pytest.approx(
        {
            "grad_norm/optimizer_0": 3.0,
            "grad_norm_clipped/optimizer_0": 3.0,
            "grad_norm/optimizer_1": 30.0,
            "grad_norm_clipped/optimizer_1": 4.0,
        }
    )


@pytest.mark.parametrize("algorithm", ["norm", "value", "adaptive"])
def test_without_gradients_there_is_nothing_to_do(algorithm):
    class Elsewhere(Module):
        """The second optimizer's parameter is in no loss."""

        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

        def training_step(self, batch, optimizer_idx):
            return batch * self.used

        def configure_optimizers(self):
            return [torch.optim.SGD([self.idle], lr=1.0), torch.optim.SGD([self.used], lr=1.0)]

    module = Elsewhere()
    Trainer(["-*"], gradient_clip_val=1.0, gradient_clip_algorithm=algorithm).fit(module, probe_batches(2))
    assert module.idle.item() == 1.0


class Steps(Plugin):
    """Keeps the step's metrics of each batch in which a step was applied."""

    name = "steps"

    def validate(self):
        self.rows = []

    @hookimpl
    def after_batch(self, loop):
        if loop.stepped:
            self.rows.append(loop.metrics.take_step())


def test_c11_norms_before_and_after_clipping_one_point_per_step(monkeypatch):
    passes = []
    norm = torch._foreach_norm
    monkeypatch.setattr(torch, "_foreach_norm", lambda *args: passes.append(args) or norm(*args))
    steps = Steps()
    batches = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])]
    Trainer(["-*", steps], gradient_clip_val=1.0, accumulate_grad_batches=2).fit(Gradients(torch.zeros(2)), batches)
    assert steps.rows == [{"grad_norm": 2.5, "grad_norm_clipped": pytest.approx(1.0)}]
    assert len(passes) == 1


def test_c89_the_norm_that_clips_is_asked_of_the_strategy():
    class Shards(Plugin):
        """Answers as a strategy whose other rank holds a shard with the gradient 4."""

        name = "shards"
        group = "strategy"

        @hookimpl
        def grad_norm(self, loop, norm_type):
            own = torch.nn.utils.get_total_norm(loop.gradients, norm_type)
            return torch.linalg.vector_norm(torch.stack([own, torch.tensor(4.0)]), norm_type)

    module, steps = Gradients(torch.zeros(1)), Steps()
    Trainer(["-*", Shards(), steps], gradient_clip_val=1.0, track_grad_norm=2).fit(module, [torch.tensor([3.0])])
    assert module.w.item() == pytest.approx(-0.6)
    assert steps.rows[0]["grad_norm"] == steps.rows[0]["grad_2.0_norm_total"] == 5.0


def test_an_optimizer_that_computes_gradients_itself_is_refused():
    module = Gradients(torch.zeros(1), torch.optim.LBFGS)
    with pytest.raises(ValueError, match="gradient_clip_val cannot be had with LBFGS"):
        Trainer(["-*"], gradient_clip_val=1.0).fit(module, [torch.ones(1)])


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_nonsense_is_refused_at_construction(value):
    with pytest.raises(ValueError, match=r"gradient_clip_val \(clip.limit\) must be a number above 0"):
        Trainer(gradient_clip_val=value)
    with pytest.raises(ValueError, match="gradient_clip_eps"):
        Trainer(gradient_clip_val=1.0, gradient_clip_algorithm="adaptive", gradient_clip_eps=value)


@pytest.mark.parametrize("value", [None, 0, 0.0, False])
def test_nothing_and_0_are_off(value):
    assert "clip" not in [plugin.name for plugin in Trainer(gradient_clip_val=value).plugins]


def test_the_old_name_still_works():
    with pytest.warns(DeprecationWarning, match="'gradient_clip' is now called 'gradient_clip_val'"):
        trainer = Trainer(["-*"], gradient_clip=2.0)
    assert [plugin.limit for plugin in trainer.plugins] == [2.0]


def test_it_pickles_after_a_run():
    trainer = Trainer(["-*"], gradient_clip_val=2.0)
    trainer.fit(Probe(), probe_batches(3))
    copy = pickle.loads(pickle.dumps(trainer))
    module = Probe()
    copy.fit(module, probe_batches(3))
    assert module.w.item() == pytest.approx(-5.0)
