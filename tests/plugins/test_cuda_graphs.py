"""What a step gives outlives the memory that its graph writes over.

There is no GPU here. ``Graphed`` has the one property of a CUDA graph that matters: it gives its loss, its outputs and its
gradients in the same memory each time. That torch's graphs have this property, and that nothing else of them is in the
way, is for ``benchmarks/gpu.py`` to show.
"""

import pickle

import pytest
import torch
from torch import nn

from lightloop import Callback, Trainer
from lightloop.testing import TinyClassifier, classification_batches
from lightloop_plugins.cuda_graphs import uses_graphs

# What torch's compiler says to itself when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


@pytest.fixture(autouse=True)
def marks(monkeypatch):
    """Where steps were marked; torch's own function would import its compiler, and then find no graph to tell of it."""
    marks = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append("mark"))
    return marks


class InPlace(torch.autograd.Function):
    """Runs a function of ``(batch, *parameters)``; loss, logits and gradients are always in the memory of the first run."""

    @staticmethod
    def forward(ctx, memory, batch, *parameters):
        with torch.enable_grad():
            leaves = [parameter.detach().requires_grad_() for parameter in parameters]
            loss, logits = memory["function"](batch, *leaves)
        ctx.memory, ctx.gradients = memory, torch.autograd.grad(loss, leaves)
        ctx.mark_non_differentiable(logits := InPlace.put(memory, "logits", logits))
        return InPlace.put(memory, "loss", loss), logits

    @staticmethod
    def backward(ctx, seed, _):
        gradients = [InPlace.put(ctx.memory, index, seed * each) for index, each in enumerate(ctx.gradients)]
        return None, None, *gradients

    @staticmethod
    def put(memory, name, value):
        if name not in memory:
            memory[name] = value.detach().clone()
        return memory[name].copy_(value.detach()).detach()


class Plain(TinyClassifier):
    def loss_of(self, batch, *parameters):
        x, y = batch
        names = [name for name, _ in self.named_parameters()]
        logits = torch.func.functional_call(self, dict(zip(names, parameters, strict=True)), (x,))
        return nn.functional.cross_entropy(logits, y), logits

    def training_step(self, batch, batch_idx):
        loss, logits = self.loss_of(batch, *self.parameters())
        self.log("loss", loss)
        return {"loss": loss, "logits": logits.detach()}

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)


class Graphed(Plain):
    def __init__(self):
        super().__init__()
        self.memory = {"function": self.loss_of}

    def training_step(self, batch, batch_idx):
        loss, logits = InPlace.apply(self.memory, batch, *self.parameters())
        self.log("loss", loss)
        return {"loss": loss, "logits": logits}

    def __getstate__(self):
        return {**self.__dict__, "memory": {}}


class Keeps(Callback):
    """Keeps the losses and outputs of all batches."""

    def __init__(self):
        self.kept = []

    def on_train_batch_end(self, trainer):
        loop = trainer.loop
        self.kept.append((loop.loss.detach(), loop.output["logits"]))


def trained(cls, guard, optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    module, keeps = cls(), Keeps()
    module.configure_optimizers = lambda: optimizer(module.parameters(), lr=0.05)
    Trainer(
        ["-*", "cuda_graphs", "callbacks", "validation"],
        callbacks=[keeps],
        cuda_graphs_guard=guard,
        max_epochs=2,
        **options,
    ).fit(module, classification_batches(8), classification_batches(2))
    return [parameter.detach() for parameter in module.parameters()], [part for pair in keeps.kept for part in pair]


def few_steps(parameters, lr):
    return torch.optim.LBFGS(parameters, lr, max_iter=3)


def same(one, other):
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 4}, {"optimizer": few_steps}],
    ids=["a batch a step", "accumulated", "with a closure"],
)
def test_guarded_graphs_train_as_the_plain_module_to_the_bit_and_what_is_kept_stays(options):
    weights, kept = trained(Graphed, True, **options)
    plain_weights, plain_kept = trained(Plain, False, **options)
    assert same(weights, plain_weights)
    assert same(kept, plain_kept)


def test_unguarded_they_do_not_so_that_these_tests_can_fail():
    assert not same(trained(Graphed, False)[1], trained(Plain, False)[1])
    weights, _ = trained(Graphed, False, accumulate_grad_batches=4)
    assert not same(weights, trained(Plain, False, accumulate_grad_batches=4)[0])


def test_gradients_of_what_no_optimizer_steps_are_added_up_as_well():
    def gradient(cls, guard):
        torch.manual_seed(0)
        module = cls()
        module.configure_optimizers = lambda: torch.optim.SGD(module.net[2].parameters(), lr=0.05)
        Trainer(["-*", "cuda_graphs"], cuda_graphs_guard=guard).fit(module, classification_batches(5))
        return module.net[0].weight.grad

    assert torch.equal(gradient(Graphed, True), gradient(Plain, False))
    assert not torch.equal(gradient(Graphed, False), gradient(Plain, False))


def test_each_step_is_marked(marks):
    class Noting(Graphed):
        def training_step(self, batch, batch_idx):
            marks.append("train")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            marks.append("validate")

    trainer = Trainer(["-*", "cuda_graphs", "validation"], cuda_graphs_guard=True, accumulate_grad_batches=2)
    trainer.fit(Noting(), classification_batches(2), classification_batches(1))
    assert marks == ["mark", "validate", "mark", "train", "mark", "train", "mark", "validate"]
    pickle.dumps(trainer)


def test_compiled_parts_are_found_and_those_without_graphs_are_not():
    class Decorated(TinyClassifier):
        @torch.compile(mode="max-autotune")
        def training_step(self, batch, batch_idx):
            raise NotImplementedError

    def inner(**options):
        module = TinyClassifier()
        module.net[1] = torch.compile(module.net[1], **options)
        return module

    def in_place(**options):
        module = TinyClassifier()
        module.compile(**options)
        return module

    def attribute(**options):
        module = TinyClassifier()
        module.function = torch.compile(torch.sin, **options)
        return module

    assert uses_graphs(Decorated())
    for made in (inner, in_place, attribute):
        assert uses_graphs(made(mode="reduce-overhead"))
        assert uses_graphs(made(backend="cudagraphs"))
        assert not uses_graphs(made())
    assert not uses_graphs(TinyClassifier())
    assert not uses_graphs(nn.Linear(2, 2))


def test_on_the_cpu_it_leaves_unless_told_to_stay():
    class Compiled(TinyClassifier):
        def __init__(self):
            super().__init__()
            self.unused = torch.compile(nn.ReLU(), mode="reduce-overhead")

    module, outputs = Compiled(), []
    module.training_step = lambda batch: outputs.append(module.net(batch[0]).sum()) or outputs[-1]
    trainer = Trainer(["-*", "cuda_graphs"])
    trainer.fit(module, classification_batches(1))
    assert trainer.loop.loss is outputs[-1]
    trainer.fit(module, classification_batches(1), cuda_graphs_guard=True)
    assert trainer.loop.loss is not outputs[-1]
