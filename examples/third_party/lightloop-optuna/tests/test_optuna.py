import optuna
import pytest
import torch
from lightloop_optuna import Pruning

from lightloop import Trainer
from lightloop.testing import PluginContract, TinyClassifier, assert_order, classification_batches

BARE = ["-*", "duration", "validation"]


class Reluctant:
    """A trial that is pruned at report ``at``."""

    number = 7

    def __init__(self, at=None):
        self.at, self.reports = at, []

    def report(self, value, step):
        self.reports.append((step, value))

    def should_prune(self):
        return bool(self.reports) and self.reports[-1][0] == self.at


class TestContract(PluginContract):
    plugin = "optuna"
    options = {"trial": Reluctant(), "monitor": "loss"}  # noqa: RUF012  # as in the contract, nobody changes it


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def fit(trial, module=None, val=True, plugins=(), **options):
    trainer = Trainer([*BARE, *plugins], **{"optuna_trial": trial, "max_epochs": 6, **options})
    trainer.fit(
        module or TinyClassifier(), classification_batches(4), classification_batches(2, seed=1) if val else None
    )
    return trainer


class Climber(TinyClassifier):
    """With a rate below 0 it climbs instead of descending."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if self.lr > 0 else -loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=abs(self.lr))


def test_a_median_pruner_prunes_the_worse_trials_of_a_study():
    rates, ended = [0.1, 0.2, 1e-6, -0.1, 0.3], {}

    def objective(trial):
        torch.manual_seed(0)
        trainer = Trainer(BARE, optuna_trial=trial, max_epochs=6)
        module = Climber(lr=trial.suggest_float("rate", -1, 1))
        try:
            result = trainer.fit(module, classification_batches(4), classification_batches(2, seed=1))
        finally:
            ended[trial.number] = (trainer.loop.status, trainer.loop.epoch)
        return result.metrics["val_loss"]

    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1))
    for rate in rates:
        study.enqueue_trial({"rate": rate})
    study.optimize(objective, n_trials=len(rates))
    assert [trial.params["rate"] for trial in study.trials] == rates
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED", "PRUNED", "COMPLETE"]
    for trial in study.trials:
        pruned = trial.state.name == "PRUNED"
        assert ended[trial.number] == (("stopped", 2) if pruned else ("finished", 6))
        assert sorted(trial.intermediate_values) == list(range(2 if pruned else 6))
        assert trial.value == trial.intermediate_values[1 if pruned else 5]


def test_the_run_ends_well_before_the_study_is_told():
    trial = Reluctant(at=2)
    with pytest.raises(optuna.TrialPruned) as info:
        fit(trial)
    assert len(trial.reports) == 3
    value = f"{trial.reports[-1][1]:.6g}"
    assert str(info.value) == f"optuna prunes trial 7 at report 2: val_loss = {value}"


def test_the_reason_is_that_of_the_run():
    trainer = Trainer(BARE, optuna_trial=Reluctant(at=1), max_epochs=6)
    with pytest.raises(optuna.TrialPruned) as info:
        trainer.fit(TinyClassifier(), classification_batches(4), classification_batches(2))
    assert (trainer.loop.status, trainer.loop.stop_reason, trainer.loop.epoch) == ("stopped", str(info.value), 2)


def test_a_minimum_of_epochs_delays_it():
    trial = Reluctant(at=1)
    with pytest.raises(optuna.TrialPruned):
        fit(trial, min_epochs=4)
    assert [step for step, _ in trial.reports] == [0, 1]


def test_a_trial_that_is_pruned_at_the_very_end_is_pruned():
    with pytest.raises(optuna.TrialPruned):
        fit(Reluctant(at=5))


def test_every_validation_within_an_epoch_is_a_report_and_the_sanity_check_is_none():
    trial = Reluctant()
    fit(trial, val_check_interval=0.5, max_epochs=2)
    assert [step for step, _ in trial.reports] == [0, 1, 2, 3]


def test_without_validation_data_each_epoch_is_a_report():
    trial = Reluctant()
    fit(trial, val=False, optuna_monitor="loss", max_epochs=3)
    assert [step for step, _ in trial.reports] == [0, 1, 2]


def test_a_metric_that_is_not_there_is_an_error():
    with pytest.raises(RuntimeError) as info:
        fit(Reluctant(), optuna_monitor="val_los")
    assert str(info.value) == "optuna_monitor is 'val_los', which has not been logged; logged are loss, val_loss"


def test_an_error_stays_an_error():
    class Net(TinyClassifier):
        def training_step(self, batch, batch_idx):
            if self.loop.epoch == 1:
                raise ValueError("mine")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="mine") as info:
        fit(Reluctant(at=0), Net(), min_epochs=3)
    assert not any("TrialPruned" in note for note in info.value.__notes__)


def test_what_is_no_trial_is_refused():
    with pytest.raises(TypeError) as info:
        Trainer(optuna_trial=3)
    assert str(info.value) == "optuna_trial (optuna.trial) must be Trial | None; 3 is int"


def test_it_stands_behind_validation_and_before_checkpoint():
    assert_order([Pruning(), "validation", "checkpoint", "run_dir"], "run_dir", "validation", "optuna", "checkpoint")
