import pickle

import pytest

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches


class Asks(Plugin):
    """Wants a directory, and remembers which one there was when the first epoch began."""

    name, requires, after = "asks", ("run_dir",), ("run_dir",)

    @hookimpl
    def before_epoch(self, loop):
        from lightloop_plugins.run_dir import RUN_DIR

        self.found = loop.stash[RUN_DIR]


def fit(tmp_path, *plugins, **options):
    trainer = Trainer(["-*", "run_dir", *plugins], default_root_dir=tmp_path, **options)
    trainer.fit(Probe(), probe_batches(1))
    return trainer


def test_each_run_has_a_directory_that_was_not_there(tmp_path):
    asks = Asks()
    trainer = fit(tmp_path, asks)
    assert trainer.run_dir == asks.found == tmp_path / "Probe" / "version_0"
    assert fit(tmp_path, Asks()).run_dir == tmp_path / "Probe" / "version_1"
    (tmp_path / "Probe" / "version_7").mkdir()
    trainer.fit(Probe(), probe_batches(1))
    assert trainer.run_dir == tmp_path / "Probe" / "version_8"
    assert trainer.run_dir.is_dir()


def test_there_is_none_where_nobody_asks(tmp_path):
    assert fit(tmp_path).run_dir is None
    assert list(tmp_path.iterdir()) == []


def test_name_and_version_can_be_chosen(tmp_path):
    assert fit(tmp_path, Asks(), run_name="trial", run_version=3).run_dir == tmp_path / "trial" / "version_3"
    assert fit(tmp_path, Asks(), run_name="trial", run_version=3).run_dir == tmp_path / "trial" / "version_3"
    assert fit(tmp_path, Asks(), run_version="first").run_dir == tmp_path / "Probe" / "first"


def test_c45_a_slash_in_a_name_makes_no_folder_in_a_folder(tmp_path):
    assert fit(tmp_path, Asks(), run_name="lr/0.1", run_version="a/b").run_dir == tmp_path / "lr_0.1" / "a_b"
    for name in ("", "..", "."):
        with pytest.raises(ValueError, match="run_name"):
            Trainer(["run_dir"], run_name=name)


def test_a_resumed_run_goes_on_in_its_directory(tmp_path):
    first = fit(tmp_path, Asks())
    state = pickle.loads(pickle.dumps(first.plugin("run_dir").state_dict()))

    class Resume(Plugin):
        name = "resume"

        @hookimpl
        def before_fit(self, loop):
            next(plugin for plugin in loop.plugins if plugin.name == "run_dir").load_state_dict(state)

    assert fit(tmp_path, Asks(), Resume()).run_dir == first.run_dir
    first.run_dir.rmdir()
    (first.run_dir.parent / "version_4").mkdir()
    assert fit(tmp_path, Asks(), Resume()).run_dir == tmp_path / "Probe" / "version_5"


def test_the_environment_says_where_runs_are(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTLOOP_RUNS", str(tmp_path / "there"))
    trainer = Trainer(["-*", "run_dir", Asks()])
    trainer.fit(Probe(), probe_batches(1))
    assert trainer.run_dir == tmp_path / "there" / "Probe" / "version_0"
    monkeypatch.delenv("LIGHTLOOP_RUNS")
    monkeypatch.chdir(tmp_path)
    trainer.fit(Probe(), probe_batches(1))
    assert trainer.run_dir == tmp_path / "runs/Probe/version_0"


def test_the_old_name(tmp_path):
    with pytest.warns(DeprecationWarning, match="default_root_dir"):
        trainer = Trainer(["-*", "run_dir", Asks()], default_save_path=str(tmp_path))
    trainer.fit(Probe(), probe_batches(1))
    assert trainer.run_dir == tmp_path / "Probe" / "version_0"
