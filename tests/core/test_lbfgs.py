import pytest
import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import TinyClassifier, classification_batches


class Quadratic(Module):
    """Loss ``(w - target)²`` from ``w = 0``; the target is the batch."""

    def __init__(self, **options):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
        self.options = {"lr": 0.1, "max_iter": 4, **options}
        self.calls = []

    def loss(self, batch):
        self.calls.append(self.w.item())
        return (self.w - batch).square()

    training_step = loss

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), **self.options)


def windows(batches, factor):
    return [batches[start : start + factor] for start in range(0, len(batches), factor)]


def plain(module, batches, factor=1):
    """What a user of torch alone would write: a closure over all batches of the window."""
    optimizer = module.configure_optimizers()
    for window in windows(batches, factor):

        def closure(window=window):
            optimizer.zero_grad()
            total = 0
            for batch in window:
                loss = module.loss(batch)
                (loss / len(window)).backward()
                total = total + loss.detach() / len(window)
            return total

        optimizer.step(closure)


def test_six_steps_on_a_quadratic_end_where_torch_alone_does():
    ones = [torch.tensor(1.0)] * 6
    module, torch_alone = Quadratic(), Quadratic()
    result = Trainer().fit(module, ones)
    plain(torch_alone, ones)
    assert module.w.item() == pytest.approx(1 - 0.9**24, rel=1e-6)
    assert torch.equal(module.w, torch_alone.w)
    assert module.calls == torch_alone.calls
    assert (len(module.calls), result.global_step, module.w.grad) == (24, 6, None)


@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe", "lr": 1.0}])
def test_with_accumulation_each_evaluation_goes_through_the_window(factor, options):
    targets = [torch.tensor(float(target)) for target in (1, 4, 2, 8, 5, 7, 3)]
    module, torch_alone = Quadratic(**options), Quadratic(**options)
    result = Trainer(accumulate_grad_batches=factor).fit(module, targets)
    plain(torch_alone, targets, factor)
    assert module.calls == torch_alone.calls
    assert result.global_step == len(windows(targets, factor))
    torch.testing.assert_close(module.w, torch_alone.w, rtol=1e-6, atol=0)  # the losses' mean is taken in another order


@pytest.mark.parametrize("factor", [1, 2])
def test_a_network_is_trained_as_by_torch_alone(factor):
    class network(TinyClassifier):
        def __init__(self):
            torch.manual_seed(0)
            super().__init__()
            self.calls = 0

        def loss(self, batch):
            self.calls += 1
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def training_step(self, batch):
            return self.loss(batch)

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=5, history_size=3)

    ours, torch_alone = network(), network()
    Trainer(accumulate_grad_batches=factor).fit(ours, classification_batches(4))
    plain(torch_alone, classification_batches(4), factor)
    assert ours.calls == torch_alone.calls
    for one, other in zip(ours.parameters(), torch_alone.parameters(), strict=True):
        assert torch.equal(one, other)


def test_gradient_hooks_run_once_per_step_whatever_the_optimizer_evaluates():
    class count(Plugin):
        name = "count"

        def validate(self):
            self.events = []

        @hookimpl
        def before_step(self, loop):
            self.events.append("before_step")

        @hookimpl
        def after_forward(self, loop):
            self.events.append("replay" if loop.replaying else "forward")

        @hookimpl
        def after_backward(self, loop):
            self.events.append("after_backward")

    seen = count()
    Trainer(plugins=[seen], accumulate_grad_batches=2).fit(Quadratic(max_iter=2), [torch.tensor(1.0)] * 2)
    once = ["forward", "after_backward"]
    assert seen.events == [*once, *once, "before_step", "replay", "replay"]


def test_a_batch_without_loss_is_not_in_the_closure():
    class skips(Quadratic):
        def training_step(self, batch):
            return None if batch > 5 else self.loss(batch)

    targets = [torch.tensor(float(target)) for target in (1, 9, 4, 9)]
    module, torch_alone = skips(), Quadratic()
    result = Trainer(accumulate_grad_batches=2).fit(module, targets)
    plain(torch_alone, [targets[0], targets[2]])
    assert result.global_step == 2
    assert module.calls == torch_alone.calls
    torch.testing.assert_close(module.w, torch_alone.w, rtol=1e-6, atol=0)  # 2 / 1 times the half of a gradient


def test_beside_another_optimizer_only_its_own_parameters_move():
    class two(Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

        def training_step(self, batch, optimizer_idx):
            return (self.a - batch).square() + (self.b - self.a.detach() if optimizer_idx else self.b).square()

        def configure_optimizers(self):
            return [torch.optim.LBFGS([self.a], lr=0.1, max_iter=4), torch.optim.SGD([self.b], lr=0.25)]

    module, torch_alone = two(), Quadratic()
    Trainer().fit(module, [torch.tensor(1.0)] * 3)
    plain(torch_alone, [torch.tensor(1.0)] * 3)
    assert torch.equal(module.a, torch_alone.w)
    a, b = 1 - 0.9 ** (4 * torch.arange(1, 4, dtype=torch.float64)), 0.0
    for each in a.tolist():
        b += 0.5 * (each - b)
    assert module.b.item() == pytest.approx(b, rel=1e-6)
