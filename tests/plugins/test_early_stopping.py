import logging
import math
import pickle

import pytest

from lightloop import Plugin, PluginError, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches
from lightloop_plugins.early_stopping import EarlyStopping


class Scores(Probe):
    """Logs the next of given values at each check: in validation as ``val_loss``, else in training as ``loss``."""

    def __init__(self, values, name="val_loss"):
        super().__init__()
        self.values, self.name, self.checks = list(values), name, 0

    def validation_step(self, batch):
        if not self.loop.evaluation.sanity:
            self.log(self.name, self.values[self.checks])
            self.checks += 1


class Metric(Scores):
    """Has no validation."""

    validation_step = None

    def training_step(self, batch):
        self.log(self.name, self.values[self.loop.epoch], on_step=False, on_epoch=True)
        return super().training_step(batch)


def fit(stopper, values, batches=1, val=True, module=None, plugins=(), **options):
    """The checks that were made, and the result."""
    module = module or Scores(values)
    trainer = Trainer(["-*", "validation", "log_every", stopper, *plugins], **{"max_epochs": len(values), **options})
    result = trainer.fit(module, probe_batches(batches), probe_batches(1) if val else None)
    return module.checks, result


WORSE = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]
nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("values", "how", "expected"),
    [
        (WORSE, {"patience": 3}, 4),  # the first check sets the baseline
        (WORSE, {"patience": 1}, 2),
        (WORSE, {"patience": 0}, 2),
        ([8, 4, 2, 3, 4, 5, 8], {"patience": 3}, 6),
        ([2, 2, 2, 2], {"patience": 2}, 3),  # the same is no improvement
        (WORSE[::-1], {"patience": 2}, 9),
        (WORSE, {"patience": 2, "mode": "max"}, 9),
        (WORSE[::-1], {"patience": 2, "mode": "max"}, 3),
        ([3.0, 3.05, 3.12, 3.0, 3.0], {"patience": 2, "mode": "max", "min_delta": 0.1}, 5),
        ([3.0, 3.05, 3.09, 3.0, 3.0], {"patience": 2, "mode": "max", "min_delta": 0.1}, 3),
        ([1.0, 0.5, 0.25, 0.0], {"patience": 1, "min_delta": 0.5}, 2),  # a change of exactly min_delta is none
        ([1.0, nan, 1.0], {}, 2),
        ([1.0, inf, 1.0], {}, 2),
        ([nan, 1.0], {}, 1),
        ([1.0, nan, nan, 0.5], {"check_finite": False, "patience": 2}, 3),
        ([nan, nan, 1.0, 0.5], {"check_finite": False, "patience": 3}, 4),
        ([1.0, 0.4, 0.3], {"stopping_threshold": 0.5}, 2),
        ([1.0, 0.5, 0.3], {"stopping_threshold": 0.5}, 3),
        ([1.0, 3.0, 0.5], {"divergence_threshold": 2.0}, 2),
        ([1.0, 2.0, 0.5], {"divergence_threshold": 2.0}, 3),
        ([0.1, 0.9, 0.2], {"stopping_threshold": 0.8, "mode": "max"}, 2),
        ([0.5, 0.1, 0.9], {"divergence_threshold": 0.2, "mode": "max"}, 2),
    ],
    ids=str,
)
def test_after_how_many_checks_it_stops(values, how, expected):
    assert fit(EarlyStopping(**how), values)[0] == expected


def test_c73_the_baseline_moves_only_by_a_counted_improvement():
    for last, stopped, best in ((3.12, None, 3.12), (3.09, 2, 3.0)):
        stopper = EarlyStopping(mode="max", min_delta=0.1, patience=2)
        fit(stopper, [3.0, 3.05, last])
        assert (stopper.stopped_epoch, stopper.best_score) == (stopped, best)


def test_what_is_known_afterwards():
    stopper = EarlyStopping(patience=2)
    _, result = fit(stopper, [1.0, 0.5, 0.6, 0.7, 0.8])
    assert (stopper.stopped_epoch, stopper.wait_count, stopper.best_score) == (3, 2, 0.5)
    assert (result.status, result.epoch) == ("stopped", 4)
    assert result.reason == "early stopping: val_loss has not improved on 0.5 for 2 checks"


def test_c21_a_stop_is_withdrawn_when_the_metric_recovers_before_the_minimum():
    stopper = EarlyStopping(patience=1)
    made, result = fit(stopper, [1.0, 1.1, 0.9, 0.8, 0.7, 0.6, 0.5], min_epochs=5)
    assert (made, result.status, result.reason, stopper.stopped_epoch) == (7, "finished", None, None)
    stopper = EarlyStopping(patience=1)
    made, result = fit(stopper, [1.0, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1], min_epochs=5)
    assert (made, result.epoch, result.status, stopper.stopped_epoch) == (5, 5, "stopped", 4)


@pytest.mark.parametrize(
    ("options", "steps", "made"),
    [
        ({"min_epochs": 4}, 32, 4),
        ({"min_epochs": 4, "val_check_interval": 0.25}, 32, 16),
        ({"min_steps": 20, "val_check_interval": 0.25}, 20, 10),
        ({"val_check_interval": 0.25}, 4, 2),
    ],
    ids=str,
)
def test_minimums_delay_the_stop_and_never_lose_it(options, steps, made):
    count, result = fit(EarlyStopping(patience=1), [1.0 + i for i in range(40)], batches=8, max_epochs=6, **options)
    assert (result.global_step, count) == (steps, made)


def test_a_training_metric_is_checked_at_the_end_of_epochs():
    made = fit(EarlyStopping("loss", patience=2), WORSE, module=Metric(WORSE, "loss"), val=False)[1].epoch
    assert made == 3


def test_a_training_metric_beside_validation():
    class Both(Scores):
        def training_step(self, batch):
            self.log("loss", WORSE[self.loop.epoch], on_step=False, on_epoch=True)
            return super().training_step(batch)

    stopper = EarlyStopping("loss", patience=2)
    assert fit(stopper, [], module=Both([0.0] * 9), max_epochs=9)[1].epoch == 3


def test_only_at_the_end_of_training_epochs():
    stopper = EarlyStopping(patience=2, check_on_train_epoch_end=True)
    made, result = fit(stopper, [1.0] * 40, batches=4, max_epochs=9, val_check_interval=1)
    assert (result.epoch, made) == (3, 12)


def test_epochs_without_validation_are_no_checks():
    made, result = fit(EarlyStopping(patience=1), [1.0, 1.0, 1.0], max_epochs=8, check_val_every_n_epoch=2)
    assert (made, result.epoch) == (2, 4)


def test_the_sanity_pass_is_no_check():
    class Sane(Scores):
        def validation_step(self, batch):
            self.log("val_loss", 0.0) if self.loop.evaluation.sanity else super().validation_step(batch)

    assert fit(EarlyStopping(patience=1), [], module=Sane([3.0, 2.0, 1.0]), max_epochs=3)[0] == 3


@pytest.mark.parametrize("how", [{}, {"check_on_train_epoch_end": False}, {"check_on_train_epoch_end": True}])
def test_a_missing_metric_is_an_error_when_it_is_due(how):
    with pytest.raises(RuntimeError, match=r"watches 'val_los', which has not been logged; logged are val_loss"):
        fit(EarlyStopping("val_los", **how), [1.0, 1.0])
    with pytest.warns(UserWarning, match="watches 'val_los'") as warned:
        assert fit(EarlyStopping("val_los", strict=False, **how), [1.0, 1.0, 1.0])[0] == 3
    assert len(warned) == 1


def test_without_validation_a_missing_metric_is_an_error_too():
    with pytest.raises(RuntimeError, match="watches 'val_loss', which has not been logged; logged are none"):
        Trainer(["-*"], early_stop_callback=True).fit(Probe(), probe_batches(1))


def test_an_error_in_validation_is_the_one_that_is_told():
    class Fails(Scores):
        def validation_step(self, batch):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(EarlyStopping(), [], module=Fails([]), max_epochs=1)


class Resume(Plugin):
    """Goes on from a state, as a checkpoint does."""

    name = "resume"
    after = ("early_stopping",)
    epoch: int
    states: dict

    @hookimpl
    def before_fit(self, loop):
        loop.epoch = loop.total_batches = loop.global_step = self.epoch
        for plugin in loop.plugins:
            if plugin.key in self.states:
                plugin.load_state_dict(self.states[plugin.key])
                loop.metrics.updates = {"val_loss": self.states[plugin.key]["updates"]}


@pytest.mark.parametrize("every", [1, 2, 3])
def test_c19_restarts_do_not_reset_the_patience(every):
    values = [1.0, 1.1, 1.1, 1.1, 1.1, 1.1]
    epoch, states = 0, {}
    while epoch < 6:
        stopper = EarlyStopping(patience=3)
        module = Scores(values)
        module.checks = epoch
        _, result = fit(stopper, values, module=module, plugins=[Resume(epoch, states)], max_epochs=epoch + every)
        states = pickle.loads(pickle.dumps({stopper.key: stopper.state_dict()}))
        epoch = result.epoch
        if result.status == "stopped":
            break
    assert (epoch, stopper.wait_count, stopper.best_score) == (4, 3, 1.0)


def test_a_stop_that_was_delayed_is_not_lost_by_a_restart():
    first = EarlyStopping()
    fit(first, [1.0, nan], min_epochs=9)
    second = EarlyStopping(strict=False)
    module = Metric([0.0] * 9, "other")
    states = {second.key: first.state_dict()}
    with pytest.warns(UserWarning, match="has not been logged"):
        result = fit(second, [], module=module, val=False, plugins=[Resume(2, states)], max_epochs=9, min_epochs=3)[1]
    assert (result.epoch, result.reason) == (3, "early stopping: val_loss is nan")


def test_more_patience_lets_a_run_go_on_that_had_none_left():
    first = EarlyStopping(patience=1)
    fit(first, WORSE)
    for patience, epochs in ((1, 2), (3, 4)):
        second = EarlyStopping(patience=patience)
        module = Scores(WORSE)
        module.checks = 2
        states = {second.key: first.state_dict()}
        assert fit(second, WORSE, module=module, plugins=[Resume(2, states)])[1].epoch == epochs


def test_fitting_twice_starts_clean():
    stopper = EarlyStopping(patience=2)
    assert fit(stopper, WORSE)[0] == fit(stopper, WORSE)[0] == 3


def test_c35_two_that_watch_different_metrics_keep_states_of_their_own():
    loss, accuracy = EarlyStopping("val_loss", patience=5), EarlyStopping("val_acc", patience=5, mode="max")

    class Two(Scores):
        def validation_step(self, batch):
            self.log("val_acc", [0.5, 0.4, 0.3][self.checks])
            super().validation_step(batch)

    fit(loss, [], module=Two([1.0, 0.9, 1.0]), plugins=[accuracy], max_epochs=3, num_sanity_val_steps=0)
    assert (loss.wait_count, accuracy.wait_count) == (1, 2)
    states = {plugin.key: plugin.state_dict() for plugin in (loss, accuracy)}
    assert sorted(states) == ["early_stopping:val_acc", "early_stopping:val_loss"]
    with pytest.raises(PluginError, match="keep their state under one key, 'early_stopping:val_loss'"):
        Trainer(["-*", EarlyStopping(), EarlyStopping(patience=9)])
    other = EarlyStopping(patience=9)
    other.key = "patient"
    assert len(Trainer(["-*", EarlyStopping(), other]).plugins) == 2


# ------------------------------------------------------------------------------------------------------------ the flag


@pytest.mark.parametrize("value", [None, False])
def test_it_is_off(value):
    assert Trainer(["-*"], early_stop_callback=value).plugin("early_stopping") is None


def test_the_flag():
    stopper = Trainer(["-*"], early_stop_callback=True).plugin("early_stopping")
    assert (stopper.monitor, stopper.patience, stopper.mode, stopper.verbose) == ("val_loss", 3, "min", True)
    own = EarlyStopping("val_acc", mode="max")
    assert Trainer(["-*"], early_stop_callback=own).plugin("early_stopping") is own
    assert Trainer(["-*"], early_stop_callback=own).early_stop_callback is own
    assert Trainer(["-*"]).early_stop_callback is None
    tuned = Trainer(["-*"], early_stop_callback=True, early_stopping_patience=7).plugin("early_stopping")
    assert tuned.patience == 7
    with pytest.raises(TypeError, match="has its options already"):
        Trainer(["-*"], early_stop_callback=own, early_stopping_patience=7)
    with pytest.raises(TypeError, match=r"early_stop_callback .* must be .*; 'val_loss' is str"):
        Trainer(["-*"], early_stop_callback="val_loss")


def test_the_old_flag():
    with pytest.warns(DeprecationWarning, match="'enable_early_stop' is now called 'early_stop_callback'"):
        assert Trainer(["-*"], enable_early_stop=True).plugin("early_stopping")


@pytest.mark.parametrize(("monitor", "mode"), [("acc", "max"), ("val_acc", "max"), ("val_loss", "min")])
def test_auto_goes_by_the_name_and_says_so(monitor, mode):
    with pytest.warns(UserWarning, match=f"takes '{monitor}' for '{mode}'"):
        stopper = EarlyStopping(monitor, mode="auto")
    assert stopper.best_score == (-inf if mode == "max" else inf)


@pytest.mark.parametrize("how", [{"patience": -1}, {"min_delta": -0.1}])
def test_nonsense_is_refused(how):
    with pytest.raises(ValueError, match=f"early_stopping_{next(iter(how))}"):
        EarlyStopping(**how)
    with pytest.raises(TypeError, match="early_stopping_mode"):
        EarlyStopping(mode="best")


def test_what_it_tells(caplog):
    with caplog.at_level(logging.INFO, logger="lightloop"):
        fit(EarlyStopping(patience=1, verbose=True), [1.0, 0.5, 0.7])
    assert [record.message for record in caplog.records] == [
        "val_loss improved from inf to 1.0",
        "val_loss improved from 1.0 to 0.5",
        "early stopping: val_loss has not improved on 0.5 for 1 check",
    ]


def test_it_pickles_after_a_run():
    stopper = EarlyStopping(patience=2)
    fit(stopper, WORSE)
    assert pickle.loads(pickle.dumps(stopper)).state_dict() == stopper.state_dict()
