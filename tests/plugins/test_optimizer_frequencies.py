import pytest
import torch
from torch import nn

from lightloop import Module, Plugin, Trainer, hookimpl
from lightloop.testing import probe_batches


class Turns(Module):
    """One weight per optimizer; loss batch × weight, so that each weight tells what it was stepped with."""

    def __init__(self, frequencies=None, count=2):
        super().__init__()
        self.w = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(count))
        self.frequencies = frequencies
        self.order = []
        self.none_at = set()

    def training_step(self, batch, batch_idx, optimizer_idx):
        self.order.append(optimizer_idx)
        return None if batch_idx in self.none_at else batch * self.w[optimizer_idx]

    def configure_optimizers(self):
        optimizers = [torch.optim.SGD([w], lr=1.0) for w in self.w]
        if self.frequencies is None:
            return optimizers
        return [
            {"optimizer": optimizer, "frequency": frequency}
            for optimizer, frequency in zip(optimizers, self.frequencies, strict=True)
        ]


def test_turns_go_in_the_order_of_the_list_and_on_across_epochs():
    module = Turns((1, 3))
    trainer = Trainer(max_epochs=2)
    result = trainer.fit(module, probe_batches(3))
    assert module.order == [0, 1, 1, 1, 0, 1]
    assert (result.global_step, trainer.loop.optimizer_steps) == (6, [2, 4])


def test_turns_are_windows_and_accumulation_starves_none():
    module = Turns((1, 1))
    trainer = Trainer(accumulate_grad_batches=2)
    result = trainer.fit(module, probe_batches(10))
    assert module.order == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    assert [w.item() for w in module.w] == [-(1.5 + 5.5 + 9.5), -(3.5 + 7.5)]
    assert (result.global_step, trainer.loop.optimizer_steps) == (5, [3, 2])


def test_the_option_is_stronger_than_the_module():
    module = Turns((1, 1), count=3)
    module.frequencies = (1, 1, 1)
    Trainer(optimizer_frequencies=[2, 1, 1]).fit(module, probe_batches(8))
    assert module.order == [0, 0, 1, 2, 0, 0, 1, 2]
    module = Turns()
    Trainer(optimizer_frequencies=(1, 2)).fit(module, probe_batches(4))
    assert module.order == [0, 1, 1, 0]


def test_a_window_without_any_loss_is_a_turn_too():
    module = Turns((1, 1))
    module.none_at = {1}
    trainer = Trainer()
    result = trainer.fit(module, probe_batches(4))
    assert module.order == [0, 1, 0, 1]
    assert (result.global_step, trainer.loop.optimizer_steps) == (3, [2, 1])


def test_a_window_that_an_epoch_ends_is_a_turn():
    module = Turns((1, 1))
    Trainer(accumulate_grad_batches=2, max_epochs=2).fit(module, (lambda: probe_batches(3))())
    assert module.order == [0, 0, 1, 0, 0, 1]


def test_without_frequencies_all_step_and_the_plugin_is_gone():
    class selects(Plugin):
        name = "selects"

        @hookimpl
        def after_batch(self, loop):
            self.asked = loop.hook.select_optimizers

    seen = selects()
    module = Turns()
    assert Trainer(plugins=[seen]).fit(module, probe_batches(2)).global_step == 2
    assert module.order == [0, 1, 0, 1]
    assert seen.asked.__qualname__ == "Operations.select_optimizers"


def test_state_goes_on_where_it_was():
    from lightloop_plugins.optimizer_frequencies import OptimizerFrequencies

    whole = Turns((2, 3))
    Trainer().fit(whole, probe_batches(9))

    class resumes(Plugin):
        name = "resumes"
        after = ("optimizer_frequencies",)

        def validate(self):
            self.state = None

        @hookimpl
        def before_fit(self, loop):
            (self.own,) = [plugin for plugin in loop.plugins if isinstance(plugin, OptimizerFrequencies)]
            if self.state:
                self.own.load_state_dict(self.state)

        @hookimpl
        def after_fit(self, loop):
            self.state = self.own.state_dict()

    resume = resumes()
    parts = Turns((2, 3))
    for size in (4, 1, 4):
        Trainer(plugins=[resume]).fit(parts, probe_batches(size))
    assert parts.order == whole.order == [0, 0, 1, 1, 1, 0, 0, 1, 1]


def test_each_fit_starts_clean():
    module, trainer = Turns((1, 2)), Trainer()
    trainer.fit(module, probe_batches(2))
    trainer.fit(module, probe_batches(2))
    assert module.order == [0, 1, 0, 1]


@pytest.mark.parametrize("value", [[], [0, 1], [1.0, 1], [True, 1], "12"])
def test_nonsense_is_refused_at_construction(value):
    with pytest.raises((ValueError, TypeError), match="optimizer_frequencies"):
        Trainer(optimizer_frequencies=value)


def test_as_many_frequencies_as_optimizers():
    with pytest.raises(ValueError, match="one number for each of the 2 optimizers"):
        Trainer(optimizer_frequencies=[1, 1, 1]).fit(Turns(), probe_batches(1))
