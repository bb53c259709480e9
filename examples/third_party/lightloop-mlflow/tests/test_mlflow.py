import os
import random
import shutil
from pathlib import Path

import pytest
from lightloop_mlflow import MLflow
from mlflow.store.tracking import file_store
from mlflow.tracking import MlflowClient

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import PluginContract, TinyClassifier, classification_batches

COMPANY = ["-*", "run_dir", "log_every", "duration"]


class TestContract(PluginContract):
    plugin = "mlflow"
    others = ("log_every",)

    def same_state(self, one, other):
        return one.keys() == other.keys()  # each run has an id of its own


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A client of the store beside the runs in ``tmp_path``."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())


def runs(store, experiment):
    """The runs of an experiment, the oldest first."""
    found = store.search_runs([store.get_experiment_by_name(experiment).experiment_id])
    return sorted(found, key=lambda run: run.info.start_time)


def metric(store, run, name):
    return [(each.step, each.value) for each in store.get_metric_history(run.info.run_id, name)]


class Net(TinyClassifier):
    def __init__(self, fails=None, **hparams):
        super().__init__()
        self.hparams = {"lr": self.lr, **hparams}
        self.fails = fails

    def training_step(self, batch, batch_idx):
        if self.fails is not None and batch_idx == 3:
            raise self.fails
        self.log("mean|x|", batch[0].abs().mean())  # a name that MLflow does not take
        return super().training_step(batch, batch_idx)


def fit(folder, module, **options):
    trainer = Trainer(COMPANY, default_root_dir=str(folder), log_every_n_steps=1, logger=["mlflow", "csv"], **options)
    return trainer.fit(module, classification_batches(5))


def test_the_store_has_every_row_that_the_csv_has(tmp_path, store):
    many = {f"p{number}": number for number in range(150)}
    fit(tmp_path, Net(**many))
    lines = (tmp_path / "Net" / "version_0" / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("loss")
    expected = [
        (int(line.split(",")[0]), float(line.split(",")[column])) for line in lines[1:] if line.split(",")[column]
    ]
    assert [step for step, _ in expected] == [1, 2, 3, 4, 5]
    (run,) = runs(store, "Net")
    assert metric(store, run, "loss") == expected
    assert len(metric(store, run, "mean_x_")) == 5
    assert run.data.params == {"lr": "0.1", **{name: str(value) for name, value in many.items()}}
    assert (run.info.run_name, run.info.status) == ("version_0", "FINISHED")


def test_an_option_makes_it_live_and_names_the_experiment(tmp_path, store):
    folder = tmp_path / "elsewhere"
    options = {"mlflow_experiment": "mine", "mlflow_uri": str(folder)}
    trainer = Trainer(COMPANY, default_root_dir=str(tmp_path), **options)
    assert "mlflow" in [plugin.name for plugin in trainer.plugins]
    assert "mlflow" not in [plugin.name for plugin in Trainer().plugins]
    trainer.fit(Net(), classification_batches(2))
    assert len(runs(MlflowClient(tracking_uri=folder.as_uri()), "mine")) == 1
    assert store.get_experiment_by_name("mine") is None


def test_the_random_numbers_of_the_program_are_left_alone(tmp_path, monkeypatch):
    def new_id():  # as MLflow does for about one id in ten, whose first digit is a 0
        drawn.append(random.randint(0, 9))
        return 10**17

    drawn = []
    monkeypatch.setattr(file_store, "_generate_unique_integer_id", new_id)
    random.seed(3)
    expected = random.Random(3).random()
    fit(tmp_path, Net())
    assert drawn
    assert random.random() == expected


@pytest.mark.parametrize(("error", "status"), [(ValueError("no"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_a_run_that_fails_says_so_and_keeps_its_rows(tmp_path, store, error, status):
    with pytest.raises(type(error)):
        fit(tmp_path, Net(error))
    (run,) = runs(store, "Net")
    assert [step for step, _ in metric(store, run, "loss")] == [1, 2, 3]
    assert run.info.status == status


@pytest.mark.filterwarnings("ignore:checkpoint .* is of another run than this:UserWarning")  # with a new hyperparameter
def test_a_resumed_run_goes_on_in_its_old_one(tmp_path, store):
    options = {"default_root_dir": str(tmp_path), "log_every_n_steps": 1, "logger": "mlflow", "run_name": "a"}
    kept = [*COMPANY, "checkpoint"]
    Trainer(kept, max_epochs=1, **options).fit(Net(), classification_batches(2))
    Trainer(kept, max_epochs=2, resume="auto", **options).fit(Net(late=1), classification_batches(2))
    (run,) = runs(store, "a")
    assert [step for step, _ in metric(store, run, "loss")] == [1, 2, 3, 4]
    assert run.data.params == {"lr": "0.1", "late": "1"}
    assert run.info.status == "FINISHED"
    store.delete_run(run.info.run_id)
    Trainer(kept, max_epochs=3, resume="auto", **options).fit(Net(), classification_batches(2))
    (run,) = runs(store, "a")
    assert [step for step, _ in metric(store, run, "loss")] == [5, 6]


def test_a_store_that_is_gone_ends_no_training(tmp_path):
    class Loses(Plugin):
        name = "loses"

        @hookimpl
        def after_batch(self, loop):
            if loop.batch_idx == 1:
                shutil.rmtree(tmp_path / "mlruns")

    trainer = Trainer([*COMPANY, Loses], default_root_dir=str(tmp_path), log_every_n_steps=1, logger="mlflow")
    with pytest.warns(UserWarning, match="plugin 'mlflow' .* is out for the rest of the run; it failed in log_metrics"):
        result = trainer.fit(Net(), classification_batches(5))
    assert (result.status, result.global_step, list(result.disabled)) == ("finished", 5, ["mlflow"])


def test_the_environment_is_as_it_was(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    before = dict(os.environ)
    Trainer([*COMPANY, MLflow()], default_root_dir=str(tmp_path)).fit(Net(), classification_batches(2))
    assert dict(os.environ) == before
    assert Path(tmp_path / "mlruns").is_dir()
