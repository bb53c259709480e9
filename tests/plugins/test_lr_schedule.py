import pickle

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop.toolkit import Relay


class Scheduled(Probe):
    """A Probe whose scheduler is made by a function of its optimizer."""

    def __init__(self, make, **entry):
        super().__init__()
        self.make, self.entry = make, entry

    def configure_optimizers(self):
        self.optimizer = super().configure_optimizers()
        self.scheduler = self.make(self.optimizer)
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": self.scheduler, **self.entry}}

    @property
    def lr(self):
        return self.optimizer.param_groups[0]["lr"]


class Rates(Plugin):
    """Keeps the rate of each step, as the optimizer used it."""

    name = "rates"

    def validate(self):
        self.used = []

    @hookimpl
    def before_step(self, loop):
        self.used.append(loop.optimizer.param_groups[0]["lr"])


class Values(Plugin):
    """Gives ``val_loss`` one of the values after each of the epochs; None is an epoch without validation."""

    name, before = "values", ("lr_schedule",)

    def validate(self):
        self.values = []

    @hookimpl
    def after_epoch(self, loop):
        if loop.epoch_finished and self.values and (value := self.values.pop(0)) is not None:
            loop.metrics.put("val_loss", value)


def values(*given):
    plugin = Values()
    plugin.values = list(given)
    return plugin


def trainer(plugins=(), **options):
    return Trainer(["-*", "lr_schedule", *plugins], **options)


def step_lr(optimizer):
    return StepLR(optimizer, 3, 0.1)


def plateau(optimizer):
    return ReduceLROnPlateau(optimizer, patience=0)


def test_c13_a_step_schedule_advances_with_the_steps():
    module, rates = Scheduled(step_lr, interval="step"), Rates()
    trainer([rates], accumulate_grad_batches=4, max_epochs=3).fit(module, probe_batches())
    assert module.scheduler.last_epoch == 9
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler, expected = StepLR(plain, 3, 0.1), []
    for _ in range(9):
        expected.append(plain.param_groups[0]["lr"])
        plain.step()
        scheduler.step()
    assert rates.used == expected
    assert module.lr == plain.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_c13_per_batch_is_an_interval_of_its_own():
    module = Scheduled(step_lr, interval="batch")
    trainer(accumulate_grad_batches=4, max_epochs=3).fit(module, probe_batches())
    assert module.scheduler.last_epoch == 30
    assert module.lr == pytest.approx(1e-10)


def test_c87_one_process_of_10_batches_makes_10_scheduler_steps():
    module = Scheduled(step_lr, interval="step")
    trainer().fit(module, probe_batches())
    assert module.scheduler.last_epoch == 10
    assert module.lr == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("interval", "frequency", "count"),
    [("step", 3, 5), ("step", 4, 3), ("epoch", 1, 5), ("epoch", 2, 2), ("batch", 7, 4)],
)
def test_frequencies_count_over_the_whole_run(interval, frequency, count):
    """Five epochs of six batches, of which two make a step."""
    module = Scheduled(step_lr, interval=interval, frequency=frequency)
    trainer(max_epochs=5, accumulate_grad_batches=2).fit(module, probe_batches(6))
    assert module.scheduler.last_epoch == count


def test_an_epoch_schedule_goes_with_finished_epochs():
    module = Scheduled(step_lr)
    trainer(max_steps=7).fit(module, probe_batches(3))
    assert module.scheduler.last_epoch == 2, "the third epoch was broken off"
    module = Scheduled(step_lr)
    trainer(max_steps=6, max_epochs=5).fit(module, probe_batches(3))
    assert module.scheduler.last_epoch == 2, "the limit fell on the end of an epoch"


def test_an_epoch_schedule_without_a_monitor_has_moved_when_the_others_are_told_of_the_end_of_the_epoch():
    class look(Plugin):
        name, before = "look", ("lr_schedule",)
        seen = []

        @hookimpl
        def after_epoch(self, loop):
            self.seen.append(loop.optimizer.param_groups[0]["lr"])

    trainer([look()], max_epochs=2).fit(Scheduled(lambda o: LambdaLR(o, lambda n: 1 / (1 + n))), probe_batches(2))
    assert look.seen == [1 / 2, 1 / 3]


class Veto(Plugin):
    name = "veto"

    def validate(self):
        self.steps = set()

    @hookimpl
    def before_step(self, loop):
        if loop.total_batches in self.steps:
            loop.skip_step("the test says so")


def test_a_skipped_step_advances_nothing_and_brings_no_warning_of_torch():
    veto = Veto()
    veto.steps = {0, 1, 4}
    module = Scheduled(step_lr, interval="step")
    trainer([veto]).fit(module, probe_batches(6))
    assert module.scheduler.last_epoch == 3
    for interval in ("epoch", "batch"):
        veto.steps = set(range(6))
        module = Scheduled(step_lr, interval=interval)
        trainer([veto]).fit(module, probe_batches(6))
        assert module.scheduler.last_epoch == (1 if interval == "epoch" else 6)


def test_schedulers_made_of_schedulers_are_quiet_too():
    def sequential(optimizer):
        warm = LambdaLR(optimizer, lambda n: (n + 1) / 4)
        return SequentialLR(optimizer, [warm, StepLR(optimizer, 2)], milestones=[3])

    module, rates = Scheduled(sequential, interval="step"), Rates()
    trainer([rates]).fit(module, probe_batches(6))
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler, expected = sequential(plain), []
    for _ in range(6):
        expected.append(plain.param_groups[0]["lr"])
        plain.step()
        scheduler.step()
    assert rates.used == expected


def test_c17_without_validation_there_is_no_plateau_step():
    module = Scheduled(plateau, monitor="val_loss")
    trainer([values(1.0, 2.0)], max_steps=1).fit(module, probe_batches(5))
    assert module.lr == 1.0
    assert module.scheduler.last_epoch == 0


def test_c17_a_missing_metric_is_an_error_if_strict_and_one_warning_if_not():
    with pytest.raises(
        ValueError, match=r"ReduceLROnPlateau is due, and its metric 'val_loss' has not been logged; logged are none"
    ):
        trainer().fit(Scheduled(plateau, monitor="val_loss"), probe_batches(2))

    class logs(Scheduled):
        def training_step(self, batch):
            self.log("loss", 1.0)
            return super().training_step(batch)

    with pytest.raises(ValueError, match="'val_loss' has not been logged; logged are loss"):
        trainer().fit(logs(plateau, monitor="val_loss"), probe_batches(2))
    module = Scheduled(plateau, monitor="val_loss", strict=False, name="mine")
    with pytest.warns(UserWarning, match="the lr_scheduler mine is due.*It is left as it is") as warned:
        trainer(max_epochs=3).fit(module, probe_batches(2))
    assert len(warned) == 1
    assert (module.lr, module.scheduler.last_epoch) == (1.0, 0)


def test_c17_nan_is_no_improvement():
    module = Scheduled(plateau, monitor="val_loss")
    trainer([values(1.0, float("nan"), float("nan"))], max_epochs=3).fit(module, probe_batches(2))
    assert module.lr == pytest.approx(0.01)


def test_a_stale_metric_is_not_used_twice():
    module = Scheduled(plateau, monitor="val_loss", strict=False)
    with pytest.warns(UserWarning, match="no new value since it was last used") as warned:
        trainer([values(1.0, None, None, 1.0)], max_epochs=4).fit(module, probe_batches(2))
    assert len(warned) == 1
    assert module.scheduler.last_epoch == 2
    assert module.lr == 0.1
    with pytest.raises(ValueError, match="no new value since it was last used"):
        trainer([values(1.0, None)], max_epochs=2).fit(Scheduled(plateau, monitor="val_loss"), probe_batches(2))
    module = Scheduled(plateau, monitor="val_loss", frequency=2)
    trainer([values(None, 1.0, None, 1.0)], max_epochs=4).fit(module, probe_batches(2))
    assert module.scheduler.last_epoch == 2


def test_plateau_equals_a_plain_loop():
    given = [1.0, 0.9, 0.95, 0.94, 0.5, 0.6, 0.6, 0.6]
    module, rates = Scheduled(lambda o: ReduceLROnPlateau(o, factor=0.3, patience=1), monitor="val_loss"), Rates()
    trainer([rates, values(*given)], max_epochs=8).fit(module, probe_batches(1))
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler, expected = ReduceLROnPlateau(plain, factor=0.3, patience=1), []
    for value in given:
        expected.append(plain.param_groups[0]["lr"])
        plain.step()
        scheduler.step(value)
    assert rates.used == expected


class Save(Plugin):
    """Keeps what a checkpoint would, after each epoch."""

    name, after = "save", ("lr_schedule", "values")

    def validate(self):
        self.states = []

    @hookimpl
    def after_epoch(self, loop):
        state = {
            "optimizer": loop.optimizer.state_dict(),
            "scheduler": loop.schedules[0].scheduler.state_dict(),
            "plugin": loop.trainer.plugin("lr_schedule").state_dict(),
            "metrics": (loop.metrics.latest, loop.metrics.updates),
            "at": (loop.epoch + 1, loop.global_step, loop.optimizer_steps),
        }
        self.states.append(pickle.loads(pickle.dumps(state)))


class Resume(Plugin):
    """Takes it back as a checkpoint would: optimizer, scheduler, counters, then plugins and metrics."""

    name = "resume"

    def validate(self):
        self.state = None

    @hookimpl(wrapper=True)
    def before_fit(self, loop):
        loop.optimizer.load_state_dict(self.state["optimizer"])
        loop.schedules[0].scheduler.load_state_dict(self.state["scheduler"])
        loop.epoch, loop.global_step, loop.optimizer_steps = self.state["at"]
        yield
        loop.trainer.plugin("lr_schedule").load_state_dict(self.state["plugin"])
        loop.metrics.latest, loop.metrics.updates = self.state["metrics"]


def resume(state):
    plugin = Resume()
    plugin.state = state
    return plugin


def test_c15_the_first_update_after_a_resume_has_the_right_rate():
    def linear(optimizer):
        return LambdaLR(optimizer, lambda step: 1 - step / 10)

    save, rates = Save(), Rates()
    trainer([save, rates]).fit(Scheduled(linear, interval="step"), probe_batches(4))
    assert rates.used == [1.0, 0.9, 0.8, 0.7]
    rates = Rates()
    trainer([resume(save.states[-1]), rates], max_epochs=2).fit(Scheduled(linear, interval="step"), probe_batches(2))
    assert rates.used == [0.6, 0.5]


def test_c47_a_resumed_plateau_counts_each_value_once():
    def patient(optimizer):
        return ReduceLROnPlateau(optimizer, patience=1)

    whole, save = Scheduled(patient, monitor="val_loss"), Save()
    trainer([values(1.0, 1.0, 1.0), save], max_epochs=3).fit(whole, probe_batches(2))
    module = Scheduled(patient, monitor="val_loss")
    trainer([values(1.0), resume(save.states[1])], max_epochs=3).fit(module, probe_batches(2))
    assert module.scheduler.last_epoch == whole.scheduler.last_epoch == 3
    assert module.scheduler.num_bad_epochs == whole.scheduler.num_bad_epochs
    assert module.lr == whole.lr == 0.1


def test_what_was_used_before_a_resume_is_stale_after_it():
    save = Save()
    trainer([values(1.0), save]).fit(Scheduled(plateau, monitor="val_loss"), probe_batches(2))
    module = Scheduled(plateau, monitor="val_loss", strict=False)
    with pytest.warns(UserWarning, match="no new value since it was last used"):
        trainer([resume(save.states[0])], max_epochs=2).fit(module, probe_batches(2))
    assert (module.lr, module.scheduler.last_epoch) == (1.0, 1)


def test_a_paused_schedule_stands_still():
    class pause(Plugin):
        name = "pause"

        @hookimpl
        def after_batch(self, loop):
            loop.schedules[0].paused = loop.batch_idx >= 2

    module = Scheduled(step_lr, interval="step")
    trainer([pause()]).fit(module, probe_batches(6))
    assert module.scheduler.last_epoch == 3


def test_each_optimizer_has_its_own_count():
    class two(Probe):
        def __init__(self):
            super().__init__()
            self.v = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch, optimizer_idx):
            return batch * (self.w if optimizer_idx == 0 else self.v)

        def configure_optimizers(self):
            optimizers = torch.optim.SGD([self.w], 1.0), torch.optim.SGD([self.v], 1.0)
            self.schedulers = [StepLR(each, 1) for each in optimizers]
            return list(optimizers), [{"scheduler": each, "interval": "step"} for each in self.schedulers]

    class alternate(Plugin):
        name = "alternate"

        @hookimpl
        def select_optimizers(self, loop):
            return (0,) if loop.batch_idx % 3 == 0 else (1,)

    module = two()
    trainer([alternate()]).fit(module, probe_batches(7))
    assert [each.last_epoch for each in module.schedulers] == [3, 4]


def test_the_module_may_step_the_schedulers_itself():
    class own(Scheduled):
        calls = []

        def lr_scheduler_step(self, scheduler, metric):
            self.calls.append((type(scheduler).__name__, metric))
            scheduler.step() if metric is None else scheduler.step(metric)

    trainer(max_epochs=2).fit(own(step_lr), probe_batches(1))
    trainer([values(0.5)]).fit(own(plateau, monitor="val_loss"), probe_batches(1))
    assert own.calls == [("StepLR", None), ("StepLR", None), ("ReduceLROnPlateau", 0.5)]


def test_it_is_only_in_the_call_chains_that_a_schedule_needs(monkeypatch):
    left, leave = [], Relay.leave

    def note(relay, plugin, *hooks):
        left.append((plugin.name, *hooks))
        leave(relay, plugin, *hooks)

    monkeypatch.setattr(Relay, "leave", note)
    trainer().fit(Probe(), probe_batches(1))
    assert left == [("lr_schedule",)]
    left.clear()
    trainer().fit(Scheduled(step_lr, interval="step"), probe_batches(1))
    assert left == [("lr_schedule", "after_epoch"), ("lr_schedule", "after_batch")]


def test_fitting_twice_starts_clean_and_pickles_in_between():
    twice = trainer([values(1.0, 1.0, 1.0, 1.0)], max_epochs=2)
    for _ in range(2):
        module = Scheduled(plateau, monitor="val_loss")
        twice.fit(module, probe_batches(2))
        assert (module.lr, module.scheduler.last_epoch) == (0.1, 2)
        pickle.dumps(twice)


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 10),
        ({"max_epochs": 3}, 30),
        ({"max_epochs": 3, "accumulate_grad_batches": 4}, 9),
        ({"max_epochs": 4, "accumulate_grad_batches": {1: 2, 2: 4}}, 10 + 5 + 3 + 3),
        ({"max_epochs": 3, "max_steps": 7}, 7),
        ({"max_steps": 25}, 25),
        ({"max_steps": 0}, 0),
        ({"max_epochs": 0}, 0),
        ({"max_epochs": -1}, None),
        ({"max_epochs": -1, "max_steps": 12}, 12),
        ({"min_epochs": 2, "min_steps": 21}, 30),
        ({"max_epochs": 2, "max_steps": -1}, 20),
    ],
    ids=str,
)
def test_the_total_of_steps_is_known_when_optimizers_are_made(options, total):
    class asks(Probe):
        def configure_optimizers(self):
            self.total = self.loop.total_steps
            return super().configure_optimizers()

    module = asks()
    if total is None:
        with pytest.raises(RuntimeError, match="enough"):
            trainer([Enough()], **options).fit(module, probe_batches())
    else:
        assert trainer(**options).fit(module, probe_batches()).global_step == total
    assert module.total == total


class Enough(Plugin):
    name = "enough"

    @hookimpl
    def before_epoch(self, loop):
        raise RuntimeError("enough")


def test_the_total_of_an_unsized_loader_is_unknown_but_for_a_bound():
    class asks(Probe):
        def configure_optimizers(self):
            self.total = self.loop.total_steps
            return super().configure_optimizers()

    for options, total in (({}, None), ({"max_epochs": 2, "max_steps": 5}, 5), ({"accumulate_grad_batches": 2}, None)):
        module = asks()
        trainer(**options).fit(module, iter(probe_batches()))
        assert module.total == total


def test_one_cycle_over_the_total_equals_a_plain_loop_bit_for_bit():
    class cycled(TinyClassifier):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = OneCycleLR(optimizer, max_lr=0.5, total_steps=self.loop.total_steps)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    data, rates = classification_batches(5), Rates()
    torch.manual_seed(0)
    ours = cycled()
    torch.manual_seed(0)
    plain = TinyClassifier()
    trainer([rates], max_epochs=3, accumulate_grad_batches=2).fit(ours, data)
    optimizer = plain.configure_optimizers()
    scheduler, used = OneCycleLR(optimizer, max_lr=0.5, total_steps=9), []
    for _ in range(3):
        for window in (data[:2], data[2:4], data[4:]):
            optimizer.zero_grad()
            for x, y in window:
                (torch.nn.functional.cross_entropy(plain(x), y) / len(window)).backward()
            used.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    assert rates.used == used
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
