"""When checkpoints are saved, which are kept, and what happens when one cannot be."""

import os
import pickle

import pytest
import torch

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop_plugins.checkpoint.errors import CheckpointError
from lightloop_plugins.checkpoint.storage import local
from lightloop_plugins.checkpoint.storage.find import load_newest
from lightloop_plugins.checkpoint.storage.local import LocalFolder
from tests.checkpoint.faults import FaultyDisk

QUIET = ["-progress", "-model_summary"]


def fit(folder, module=None, batches=6, plugins=(), **options):
    trainer = Trainer([*QUIET, *plugins], checkpoint_dir=folder, **options)
    trainer.fit(module or Probe(), probe_batches(batches))
    return trainer


def steps(folder):
    """The steps of the checkpoints that are there."""
    return [int(name.split("-")[1]) for name in LocalFolder(folder).names()]


class Scored(Probe):
    """Logs a given score after each step."""

    def __init__(self, scores):
        super().__init__()
        self.scores = list(scores)

    def training_step(self, batch, global_step):
        self.log("score", self.scores[global_step])
        return super().training_step(batch)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"max_epochs": 3}, [12, 18]),
        ({"max_epochs": 3, "save_last": 9}, [6, 12, 18]),
        ({"save_every": 2, "save_last": 9}, [2, 4, 6]),
        ({"save_every": "4 batches", "save_last": 9}, [4, 6]),
        ({"save_every": None}, [6]),
        ({"save_every": None, "max_steps": 3}, [3]),
        ({"save_every": "2 epochs", "max_epochs": 3, "save_last": 9}, [12, 18]),
        ({"save_every": 4, "save_top_k": -1, "max_epochs": 2}, [4, 8, 12]),
        ({"enable_checkpointing": False}, []),
        ({"fast_dev_run": True}, []),
    ],
    ids=str,
)
def test_when_it_saves(tmp_path, options, wanted):
    fit(tmp_path, **options)
    assert steps(tmp_path) == wanted


def test_by_default_it_saves_in_the_directory_of_the_run(tmp_path):
    trainer = Trainer(QUIET, default_root_dir=tmp_path)
    trainer.fit(Probe(), probe_batches())
    assert steps(tmp_path / "Probe" / "version_0" / "checkpoints") == [10]
    again = Trainer(QUIET, default_root_dir=tmp_path, max_epochs=2)
    again.fit(Probe(), probe_batches(), resume="auto")
    assert steps(tmp_path / "Probe" / "version_0" / "checkpoints") == [10, 20]
    assert os.listdir(tmp_path / "Probe") == ["version_0"]


def test_a_moved_run_goes_on_where_it_is(tmp_path):
    Trainer(QUIET, default_root_dir=tmp_path).fit(Probe(), probe_batches())
    (tmp_path / "Probe" / "version_0").rename(tmp_path / "moved")
    again = Trainer(QUIET, default_root_dir=tmp_path, max_epochs=2, resume=tmp_path / "moved")
    again.fit(Probe(), probe_batches())
    assert steps(tmp_path / "moved" / "checkpoints") == [10, 20]


def test_the_best_and_the_newest_are_kept(tmp_path):
    scores = [5, 1, float("nan"), 3, 2, 4, 6, 7]
    fit(tmp_path, Scored(scores), 8, save_every=1, monitor="score", save_top_k=2, save_last=1)
    assert steps(tmp_path) == [2, 5, 8]
    fit(tmp_path / "max", Scored(scores), 8, save_every=1, monitor="score", monitor_mode="max", save_last=1)
    assert steps(tmp_path / "max") == [8]


def test_where_a_fit_has_saved_is_known_through_the_evaluations_that_follow(tmp_path):
    trainer = fit(tmp_path, Scored([5, 1, 3]), 3, save_every=1, monitor="score")
    checkpoint = trainer.plugin("checkpoint")
    trainer.validate(TinyClassifier(), classification_batches(1))
    assert (checkpoint.last_path, checkpoint.best_path) == tuple(
        f"{tmp_path}/step-{step:09d}-batch-{step:09d}" for step in (3, 2)
    )


def test_c33_a_resumed_run_ranks_what_both_lives_have_saved(tmp_path):
    keep = {"save_every": 1, "monitor": "score", "save_top_k": 2, "save_last": 1}
    fit(tmp_path, Scored([3.0, 4.0, 5.0]), 3, **keep)
    assert steps(tmp_path) == [1, 2, 3]
    fit(tmp_path, Scored([0, 0, 0, 2.0, 1.0, 0.5]), 3, max_epochs=2, resume="auto", **keep)
    assert steps(tmp_path) == [5, 6]


def test_c33_another_directory_and_the_file_that_was_given_stay(tmp_path):
    fit(tmp_path / "one", batches=3, save_every=1, save_last=3)
    start = tmp_path / "one" / LocalFolder(tmp_path / "one").names()[0]
    fit(tmp_path / "two", batches=3, save_every=1, save_last=1, resume=start)
    assert (steps(tmp_path / "one"), steps(tmp_path / "two")) == ([1, 2, 3], [3])
    fit(tmp_path / "one", batches=3, max_epochs=2, save_every=1, save_last=1, resume=start)
    assert set(steps(tmp_path / "one")) == {1, 2, 3, 6}  # what another past had later is another run's now
    assert start.exists()


def test_c43_checkpoints_of_other_runs_are_not_rotated_and_a_new_one_survives(tmp_path):
    for limit in (8, 9, 10):
        fit(tmp_path, batches=limit, save_every=None)
    fit(tmp_path, batches=2, save_every=1, save_last=3)
    assert steps(tmp_path) == [1, 2, 8, 9, 10]
    assert load_newest(LocalFolder(tmp_path)).manifest.step == 2


def test_a_checkpoint_that_somebody_deleted_is_a_warning(tmp_path):
    class Deletes(Plugin):
        name = "deletes"

        @hookimpl
        def before_batch(self, loop):
            if loop.total_batches == 1:
                for name in LocalFolder(tmp_path).names():
                    LocalFolder(tmp_path).remove(name)

    with pytest.warns(UserWarning, match="gone already"):
        fit(tmp_path, batches=3, save_every=1, save_last=1, plugins=[Deletes])
    assert steps(tmp_path) == [3]


def test_saving_when_the_metric_improves(tmp_path):
    class Net(TinyClassifier):
        scores = iter([3.0, 4.0, 2.0, 2.0])

        def validation_step(self, batch):
            pass

        def on_validation_epoch_end(self):
            self.log("val", next(self.scores))

    trainer = Trainer(
        QUIET,
        checkpoint_dir=tmp_path,
        save_every=None,
        monitor="val",
        max_epochs=4,
        save_last=9,
        num_sanity_val_steps=0,
    )
    trainer.fit(Net(), classification_batches(2), classification_batches(1))
    assert steps(tmp_path) == [2, 6, 8]


class Broken(Plugin):
    name = "broken"

    def state_dict(self):
        return {"inner": [{"hook": print}]}


def test_a_state_that_cannot_be_stored_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"plugins\.broken\.state\.inner\.0\.hook: .* cannot be stored"):
        fit(tmp_path, plugins=[Broken])
    assert steps(tmp_path) == []


def test_a_plugin_whose_state_fails_is_named(tmp_path):
    class Fails(Plugin):
        name = "fails"

        def state_dict(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        fit(tmp_path, plugins=[Fails])
    assert any("in state_dict of plugin 'fails'" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("threaded", [False, True])
def test_a_save_that_fails_ends_the_run_or_is_a_warning(tmp_path, monkeypatch, threaded):
    disk = FaultyDisk()
    monkeypatch.setattr(local, "Disk", lambda: disk)
    real = FaultyDisk.write

    def write(self, *arguments):
        if len(LocalFolder(tmp_path).names()) == 1 and self.at is None:
            self.at = -1
            raise OSError(28, "No space left on device")
        return real(self, *arguments)

    monkeypatch.setattr(FaultyDisk, "write", write)
    with pytest.raises(CheckpointError, match="No space left on device"):
        fit(tmp_path, save_every=2, async_save=threaded)
    assert steps(tmp_path) == [2]
    disk.at = None
    with pytest.warns(UserWarning, match="Training goes on"):
        fit(tmp_path, save_every=2, on_save_error="warn", async_save=threaded, resume="auto")
    assert steps(tmp_path) == [2, 6]


def test_if_the_last_save_fails_the_run_does_not_end_well(tmp_path, monkeypatch):
    def write(self, *arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FaultyDisk, "write", write)
    monkeypatch.setattr(local, "Disk", FaultyDisk)
    with pytest.warns(UserWarning, match="in a row"), pytest.raises(CheckpointError, match="the last save failed"):
        fit(tmp_path, on_save_error="warn")
    with pytest.warns(UserWarning, match="in a row"), pytest.raises(CheckpointError, match="No space"):
        fit(tmp_path, on_save_error="warn", save_every=1)


def test_an_error_saves_what_auto_does_not_take(tmp_path):
    class Fails(Probe):
        def training_step(self, batch):
            if batch == 4:
                raise ZeroDivisionError
            return super().training_step(batch)

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, Fails(), save_every=2, save_on_exception=True)
    assert steps(tmp_path) == [2]
    (name,) = [name for name in os.listdir(tmp_path) if name.startswith("exception-")]
    assert name == "exception-000000003-batch-000000003"
    with pytest.warns(UserWarning, match="when an error ended the run"):
        assert fit(tmp_path, resume=tmp_path / name).global_step == 6


def test_plugins_that_differ_are_shown_and_strict_refuses(tmp_path):
    fit(tmp_path, gradient_clip_val=1.0)
    with pytest.warns(UserWarning, match="plugins that are not live now: clip"):
        fit(tmp_path, resume="auto")
    with pytest.raises(CheckpointError, match=r"resume_strict is set:\n  plugins that are not live now: clip"):
        fit(tmp_path, resume=tmp_path / LocalFolder(tmp_path).names()[0], resume_strict=True)


def test_plugins_that_are_new_and_change_the_numbers_are_shown_too(tmp_path):
    fit(tmp_path)
    with pytest.raises(CheckpointError, match="plugins that were not live then, and begin anew: clip\n"):
        fit(tmp_path, resume="auto", resume_strict=True, gradient_clip_val=1.0)


def test_who_saves_is_no_difference(tmp_path):
    fit(tmp_path)
    newest = tmp_path / LocalFolder(tmp_path).names()[-1]
    trainer = Trainer([*QUIET, "-checkpoint"], resume=newest, resume_strict=True)
    assert trainer.fit(Probe(), probe_batches(6)).global_step == 6


def test_an_empty_path_is_refused_at_once():
    with pytest.raises(ValueError, match="resume"):
        Trainer(resume="")


class Versioned(Plugin):
    name = "versioned"
    state_version = 1

    def state_dict(self):
        return {"count": 3}

    def load_state_dict(self, state):
        self.loaded = dict(state)


def test_a_state_of_an_older_form_is_migrated(tmp_path):
    class Newer(Versioned):
        state_version = 2

        @classmethod
        def migrate_state(cls, state, version):
            return {"counts": [state["count"]], "from": version}

    class Unable(Versioned):
        state_version = 2

    fit(tmp_path, plugins=[Versioned])
    plugin = Newer()
    fit(tmp_path, plugins=[plugin], resume="auto")
    assert plugin.loaded == {"counts": [3], "from": 1}
    with pytest.raises(CheckpointError, match="state of version 1 cannot be read"):
        fit(tmp_path, plugins=[Unable], resume="auto")


class Wider(Probe):
    def __init__(self):
        super().__init__()
        self.more = torch.nn.Parameter(torch.zeros(2))


class Reshaped(Probe):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3))


class OtherOptimizer(Probe):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Wider, "is of another module: without more"),
        (Reshaped, r"parameter w has shape \[\] of torch.float32 there, \[3\]"),
        (OtherOptimizer, "is of the optimizers SGD; configure_optimizers returns Adam"),
    ],
)
def test_another_module_is_refused_before_anything_is_changed(tmp_path, module, message):
    fit(tmp_path)
    other = module()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        fit(tmp_path, other, resume="auto")
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


def test_what_is_not_there_is_refused_if_it_was_asked_for(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        fit(tmp_path / "new", resume=tmp_path)
    assert fit(tmp_path / "new", resume="auto").global_step == 6


@pytest.mark.parametrize("options", [{"save_last": 0}, {"save_top_k": -2}, {"save_every": "never"}, {"save_every": 0}])
def test_nonsense_is_refused_at_construction(options):
    with pytest.raises(ValueError, match=r"save_last|save_top_k|save_every"):
        Trainer(**options)


def test_in_memory(tmp_path):
    place = "memory://lightloop-plugin"
    fit(place)
    assert fit(place, resume="auto", max_epochs=2).global_step == 12
    import fsspec

    fsspec.filesystem("memory").rm("/lightloop-plugin", recursive=True)


def test_it_pickles_after_a_run_and_fits_again(tmp_path):
    trainer = fit(tmp_path, async_save=True)
    pickle.loads(pickle.dumps(trainer))
    trainer.fit(Probe(), probe_batches(7))
    assert steps(tmp_path) == [6, 7]


def test_c19_patience_outlives_every_restart(tmp_path):
    class Net(TinyClassifier):
        def validation_step(self, batch):
            pass

        def on_validation_epoch_end(self):
            self.log("val_loss", 1.0 if self.current_epoch == 0 else 1.1)

    for limit in (2, 4, 6):
        trainer = Trainer(
            QUIET,
            checkpoint_dir=tmp_path,
            resume="auto",
            max_epochs=limit,
            early_stop_callback=True,
            early_stopping_patience=3,
            num_sanity_val_steps=0,
        )
        trainer.fit(Net(), classification_batches(1), classification_batches(1))
    assert trainer.loop.epoch == 4


def test_c67_the_hooks_of_a_resumed_epoch(tmp_path):
    class Order(Plugin):
        name = "order"

        def validate(self):
            self.seen = []

        @hookimpl
        def before_fit(self, loop):
            self.seen.append(("before_fit", loop.batch_idx))

        @hookimpl
        def before_epoch(self, loop):
            self.seen.append(("before_epoch", loop.epoch, loop.batch_idx))

        @hookimpl
        def after_batch(self, loop):
            self.seen.append(loop.batch_idx)

        @hookimpl
        def after_epoch(self, loop):
            self.seen.append(("after_epoch", loop.epoch))

    fit(tmp_path, plugins=[Order], max_steps=4)
    plugin = Order()
    fit(tmp_path, plugins=[plugin], resume="auto", max_steps=-1, max_epochs=1)
    assert plugin.seen == [("before_fit", 4), ("before_epoch", 0, 4), 4, 5, ("after_epoch", 0)]
