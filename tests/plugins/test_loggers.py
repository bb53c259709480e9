"""What all loggers have in common, and how one of one's own is written."""

import argparse
import dataclasses
import json
import pickle

import pytest

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, TinyClassifier, classification_batches, probe_batches
from lightloop_plugins.loggers import Logger

QUIET = {"enable_progress_bar": False, "weights_summary": None}


class Lines(Logger):
    name = "lines"

    def validate(self):
        self.events = []

    def open(self, loop, directory):
        self.events.append("open")
        self.file = open(directory / "metrics.jsonl", "a")  # noqa: SIM115

    def write(self, metrics, step):
        self.file.write(json.dumps({"step": step, **metrics}) + "\n")

    def close(self, status):
        self.events.append(status)
        self.file.close()
        del self.file


class Logging(Probe):
    def __init__(self, fail_at=None):
        super().__init__()
        self.fail_at = fail_at

    def training_step(self, batch):
        if batch == self.fail_at:
            raise RuntimeError("no more")
        self.log("x", batch)
        return super().training_step(batch)

    def validation_step(self, batch):
        self.log("val", batch)


def test_a_logger_of_ones_own(tmp_path):
    lines = Lines()
    trainer = Trainer(logger=lines, log_every_n_steps=2, default_root_dir=tmp_path, **QUIET)
    assert trainer.plugin("csv") is None
    trainer.fit(Logging(), probe_batches(4))
    rows = [json.loads(line) for line in (trainer.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": step, "epoch": 0, "x": float(step)} for step in (1, 2, 4)]
    assert lines.events == ["open", "success"]
    pickle.loads(pickle.dumps(trainer))


@pytest.mark.parametrize("several", [["csv", Lines()], [Lines(), "csv"]])
def test_several_loggers(several, tmp_path):
    trainer = Trainer(logger=several, default_root_dir=tmp_path, **QUIET)
    trainer.fit(Logging(), probe_batches(2))
    assert {path.name for path in trainer.run_dir.iterdir()} >= {"metrics.csv", "metrics.jsonl"}


def test_no_logger_no_directory(tmp_path):
    trainer = Trainer(["-*", "run_dir", "log_every"], logger=False, default_root_dir=tmp_path)
    trainer.fit(Logging(), probe_batches(2))
    assert list(tmp_path.iterdir()) == []


def test_c63_it_is_closed_once_and_knows_how_the_run_ended(tmp_path):
    lines = Lines()
    trainer = Trainer(logger=lines, default_root_dir=tmp_path, **QUIET)
    with pytest.raises(RuntimeError, match="no more"):
        trainer.fit(Logging(fail_at=2), probe_batches(4))
    trainer.fit(Logging(), probe_batches(4))
    trainer.validate(Logging(), probe_batches(2))
    assert lines.events == ["open", "failed", "open", "success", "open", "success"]


def test_an_interrupted_run_is_said_to_be(tmp_path):
    class Interrupt(Plugin):
        name = "asks"

        @hookimpl
        def after_batch(self, loop):
            loop.interrupt("enough")

    class Press(Plugin):
        name = "press"

        @hookimpl
        def after_batch(self, loop):
            raise KeyboardInterrupt

    lines = Lines()
    Trainer([Interrupt()], logger=lines, default_root_dir=tmp_path, **QUIET).fit(Logging(), probe_batches(4))
    with pytest.raises(KeyboardInterrupt):
        Trainer([Press()], logger=lines, default_root_dir=tmp_path, **QUIET).fit(Logging(), probe_batches(4))
    assert lines.events == ["open", "interrupted", "open", "interrupted"]


def test_c61_an_evaluation_of_the_same_trainer_stands_at_the_end_of_its_fit(tmp_path):
    trainer = Trainer(logger=["csv", Lines()], log_every_n_steps=2, default_root_dir=tmp_path, **QUIET)
    trainer.fit(Logging(), probe_batches(4))
    directory = trainer.run_dir
    trainer.validate(Logging(), probe_batches(2))
    assert trainer.run_dir == directory
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 4, 4]
    assert (directory / "metrics.csv").read_text().splitlines()[-1] == "4,0,,1.5"


@dataclasses.dataclass
class Settings:
    lr: float = 0.1


@pytest.mark.parametrize("hparams", [{"lr": 0.1}, Settings(), argparse.Namespace(lr=0.1)])
def test_hyperparameters_are_written_in_any_form(hparams, tmp_path):
    module = TinyClassifier()
    module.hparams = hparams
    trainer = Trainer(default_root_dir=tmp_path, **QUIET)
    trainer.fit(module, classification_batches(1))
    assert json.loads((trainer.run_dir / "hparams.json").read_text()) == {"lr": 0.1}
