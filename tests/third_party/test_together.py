"""Three distributions of others, installed by pip from their wheels, in one run with each other and with all that is default."""

import csv
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import lightloop_mlflow
import lightloop_optuna
import lightloop_wandb
import optuna
import pytest
from mlflow.tracking import MlflowClient

from lightloop import Trainer
from lightloop.testing import TinyClassifier, assert_order, classification_batches
from lightloop.toolkit import discover

NAMES = ("mlflow", "optuna", "wandb")


def test_what_runs_is_what_pip_installed():
    for module in (lightloop_mlflow, lightloop_optuna, lightloop_wandb):
        assert Path(module.__file__).parent == Path(sysconfig.get_path("purelib"))
    found = discover()
    assert [str(found[name]) for name in NAMES] == [f"{name!r} of lightloop-{name} 1.0.0" for name in NAMES]


@pytest.mark.parametrize("off", ["0", "1"])
def test_what_is_installed_costs_a_run_nothing_until_it_is_asked_for(off):
    program = (
        "import sys\nfrom lightloop import Trainer\nTrainer()\n"
        "print([name for name in ('wandb', 'mlflow', 'optuna', 'lightloop_wandb') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LIGHTLOOP_DISCOVER": off},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ("[]\n" if off == "0" else "['lightloop_wandb']\n")


def test_the_order_is_the_same_however_they_are_listed():
    company = ["csv", "run_dir", "log_every", "validation", "checkpoint", *NAMES]
    order = ["run_dir", "csv", "mlflow", "wandb", "log_every", "validation", "optuna", "checkpoint"]
    assert_order(company, *order)


@pytest.mark.parametrize("pruned", [False, True])
def test_a_trial_is_logged_by_all_of_them(tmp_path, pruned):
    def objective(trial):
        options = {"logger": ["csv", "mlflow", "wandb"], "optuna_trial": trial, "default_root_dir": str(tmp_path)}
        trainer = Trainer(max_epochs=3, log_every_n_steps=1, **options)
        result = trainer.fit(TinyClassifier(), classification_batches(2), classification_batches(2, seed=1))
        assert result.disabled == {}
        return result.metrics["val_loss"]

    bound = 0.0 if pruned else 1e9
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=bound, n_warmup_steps=1))
    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    epochs = 2 if pruned else 3
    assert (trial.state.name, len(trial.intermediate_values)) == ("PRUNED" if pruned else "COMPLETE", epochs)

    with open(tmp_path / "TinyClassifier" / "version_0" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("TinyClassifier").experiment_id])
    for name in ("loss", "val_loss"):
        kept = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
        assert kept == [(int(row["step"]), float(row[name])) for row in rows if row[name]]
    assert len([row for row in rows if row["val_loss"]]) == epochs
    assert [float(row["val_loss"]) for row in rows if row["val_loss"]] == list(trial.intermediate_values.values())
    assert run.info.status == "FINISHED"  # to be pruned is no failure
    assert len(list(tmp_path.glob("TinyClassifier/version_0/wandb/offline-run-*/*.wandb"))) == 1
