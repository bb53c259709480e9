import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches


class StopAt(Plugin):
    """Asks for the end of training after so many batches."""

    name = "stop_at"
    batches: int

    @hookimpl
    def after_batch(self, loop):
        if loop.total_batches + 1 == self.batches:
            loop.stop("enough")


def fit(batches=5, plugins=(), **options):
    """Steps, finished epochs, batches and how it ended."""
    module = Probe()
    data = probe_batches(batches) if isinstance(batches, int) else batches
    result = Trainer(["-*", *plugins], **options).fit(module, data)
    assert module.w.grad is None
    return result.global_step, result.epoch, len(module.seen), result.status


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (5, 1, 5, "finished")),
        ({"max_epochs": 3}, (15, 3, 15, "finished")),
        ({"max_epochs": 0}, (0, 0, 0, "finished")),
        ({"max_steps": 0}, (0, 0, 0, "stopped")),
        ({"max_steps": 3}, (3, 0, 3, "stopped")),
        ({"max_steps": 5}, (5, 1, 5, "stopped")),
        ({"max_steps": 12}, (12, 2, 12, "stopped")),
        ({"max_steps": 12, "max_epochs": 2}, (10, 2, 10, "finished")),
        ({"max_steps": 7, "max_epochs": 2}, (7, 1, 7, "stopped")),
        ({"max_steps": -1, "max_epochs": 2}, (10, 2, 10, "finished")),
        ({"max_steps": 7, "max_epochs": -1}, (7, 1, 7, "stopped")),
        ({"min_epochs": 3}, (15, 3, 15, "finished")),
        ({"min_epochs": 0}, (5, 1, 5, "finished")),
        ({"min_steps": 12}, (15, 3, 15, "finished")),
        ({"min_steps": 3}, (5, 1, 5, "finished")),
        ({"min_epochs": 5, "max_epochs": 2}, (10, 2, 10, "finished")),
        ({"min_steps": 50, "max_epochs": 2}, (10, 2, 10, "finished")),
        ({"min_epochs": 5, "max_steps": 7}, (7, 1, 7, "stopped")),
        ({"min_steps": 50, "max_steps": 7}, (7, 1, 7, "stopped")),
    ],
    ids=str,
)
def test_how_long_it_trains(options, expected):
    assert fit(**options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (2, 0, 2, "stopped")),
        ({"min_epochs": 1}, (5, 1, 5, "stopped")),
        ({"min_epochs": 2}, (10, 2, 10, "stopped")),
        ({"min_steps": 7}, (7, 1, 7, "stopped")),
        ({"min_steps": 1}, (2, 0, 2, "stopped")),
        ({"min_epochs": 1, "min_steps": 8}, (8, 1, 8, "stopped")),
        ({"min_epochs": 2, "min_steps": 8}, (10, 2, 10, "stopped")),
        ({"min_epochs": 4, "max_steps": 7}, (7, 1, 7, "stopped")),
    ],
    ids=str,
)
def test_minimums_delay_a_stop_and_never_lose_it(options, expected):
    assert fit(plugins=[StopAt(2)], **{"max_epochs": 3, **options}) == expected


def test_steps_are_windows():
    assert fit(8, max_steps=3, accumulate_grad_batches=2) == (3, 0, 6, "stopped")
    assert fit(8, min_steps=3, accumulate_grad_batches=2, plugins=[StopAt(1)]) == (3, 0, 6, "stopped")
    assert fit(8, plugins=[StopAt(3)], accumulate_grad_batches=2) == (2, 0, 3, "stopped")  # the open window is closed


def test_two_optimizers_count_once():
    class Two(Probe):
        def training_step(self, batch, optimizer_idx):
            return super().training_step(batch)

        def configure_optimizers(self):
            return [torch.optim.SGD([self.w], lr=1.0), torch.optim.SGD([self.w], lr=1.0)]

    module = Two()
    assert Trainer(["-*"], max_steps=3).fit(module, probe_batches(5)).global_step == 3
    assert len(module.seen) == 6


def test_a_step_limit_ends_an_endless_stream():
    def stream():
        while True:
            yield torch.tensor(1.0)

    assert fit(stream(), max_steps=4) == (4, 0, 4, "stopped")


class Resumed(Plugin):
    name = "resumed"
    epoch: int

    @hookimpl
    def before_fit(self, loop):
        loop.epoch, loop.total_batches, loop.global_step = self.epoch, 3 * self.epoch, 3 * self.epoch


def test_c23_a_resumed_fit_trains_what_is_left():
    epochs = []

    class Ends(Plugin):
        name = "ends"

        @hookimpl
        def after_epoch(self, loop):
            epochs.append(loop.epoch)

    for epoch in range(3):
        assert fit(3, plugins=[Resumed(epoch), Ends()], max_epochs=epoch + 1) == (
            3 * epoch + 3,
            epoch + 1,
            3,
            "finished",
        )
    assert epochs == [0, 1, 2]


def test_a_resumed_fit_that_has_its_steps_trains_nothing():
    assert fit(3, plugins=[Resumed(2)], max_steps=4) == (6, 2, 0, "stopped")
    assert fit(3, plugins=[Resumed(2)], max_steps=6) == (6, 2, 0, "stopped")
    assert fit(3, plugins=[Resumed(2)], max_epochs=1) == (6, 2, 0, "finished")


def test_fitting_twice_starts_clean():
    module, trainer = Probe(), Trainer(["-*"], max_steps=3)
    assert [trainer.fit(module, probe_batches(5)).global_step for _ in range(2)] == [3, 3]
    assert len(module.seen) == 6


def test_a_step_limit_that_is_met_by_the_last_batch_finishes_the_epoch():
    for limit, finished in ((4, [False]), (5, [True])):
        seen = []

        class Finished(Plugin):
            name = "finished"

            @hookimpl
            def after_epoch(self, loop):
                seen.append(loop.epoch_finished)  # noqa: B023

        fit(plugins=[Finished()], max_steps=limit)
        assert seen == finished


@pytest.mark.parametrize("name", ["max_epochs", "max_steps", "min_epochs", "min_steps"])
def test_nonsense_is_refused_at_construction(name):
    with pytest.raises(ValueError, match=f"{name} .* must be a whole number"):
        Trainer(["-*"], **{name: -2})
    with pytest.raises(TypeError, match=f"{name} .* must be"):
        Trainer(["-*"], **{name: 1.5})
    with pytest.raises(TypeError, match=f"{name} .* must be"):
        Trainer(["-*"], **{name: True})


@pytest.mark.parametrize("name", ["max_epochs", "min_epochs"])
def test_old_names(name):
    old = name.replace("_", "_nb_")
    with pytest.warns(DeprecationWarning, match=f"'{old}' is now called '{name}'"):
        assert getattr(Trainer(["-*"], **{old: 2}).plugin("duration"), name) == 2
