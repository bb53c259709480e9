import json
import struct
import time
from pathlib import Path

import pytest
from lightloop_wandb import Wandb
from wandb.proto.wandb_internal_pb2 import Record

from lightloop import Trainer
from lightloop.testing import PluginContract, TinyClassifier, classification_batches

COMPANY = ["-*", "run_dir", "log_every", "duration"]


class TestContract(PluginContract):
    plugin = "wandb"
    others = ("log_every",)

    def same_state(self, one, other):
        return one.keys() == other.keys()  # each run has an id of its own


def records(path):
    """What an offline run has kept so far: a log of blocks of 32 KiB, as LevelDB writes them, with a header of 7 bytes."""
    data, place, found, record = Path(path).read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        if 0 < (rest := -place % 32768) < 7:  # too little of the block is left for a record
            place += rest
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if place <= len(data) and kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(record))
            record = b""
    return found


def finished(path):
    """The records of a run when the last one is there: another process writes them, and may be some time behind."""
    until = time.monotonic() + 60
    while not (kept := records(path)) or not any(record.HasField("exit") for record in kept):
        assert time.monotonic() < until, "the run has no end"
        time.sleep(0.05)
    return kept


class Offline:
    """The one offline run in a directory, read back."""

    def __init__(self, directory):
        (path,) = Path(directory).glob("wandb/offline-run-*/*.wandb")
        kept = finished(path)
        (self.run, *_) = [record.run for record in kept if record.HasField("run")]
        configs = [self.run.config, *(record.config for record in kept if record.HasField("config"))]
        self.config = {
            item.key: json.loads(item.value_json) for config in configs for item in config.update if item.key
        }
        self.rows = [
            {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for record in kept
            if record.HasField("history")
        ]
        self.exit_codes = [record.exit.exit_code for record in kept if record.HasField("exit")]

    def metric(self, name):
        return [(row["global_step"], row[name]) for row in self.rows if name in row]


class Net(TinyClassifier):
    def __init__(self, fails=None):
        super().__init__()
        self.hparams = {"lr": self.lr, "layers": [4, 8, 3]}
        self.fails = fails

    def training_step(self, batch, batch_idx):
        if self.fails is not None and batch_idx == 3:
            raise self.fails
        return super().training_step(batch, batch_idx)


def fit(folder, module, **options):
    trainer = Trainer(COMPANY, default_root_dir=str(folder), log_every_n_steps=1, logger=["wandb", "csv"], **options)
    try:
        trainer.fit(module, classification_batches(5))
    finally:
        directory = trainer.run_dir
    return directory


def test_an_offline_run_has_every_row_that_the_csv_has(tmp_path):
    offline = Offline(fit(tmp_path, Net()))
    lines = (tmp_path / "Net" / "version_0" / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("loss")
    expected = [
        (int(line.split(",")[0]), float(line.split(",")[column])) for line in lines[1:] if line.split(",")[column]
    ]
    assert [step for step, _ in expected] == [1, 2, 3, 4, 5]
    assert offline.metric("loss") == expected
    assert (offline.run.project, offline.run.display_name) == ("Net", "version_0")
    assert {name: offline.config[name] for name in ("lr", "layers")} == {"lr": 0.1, "layers": [4, 8, 3]}
    assert offline.exit_codes == [0]


def test_an_option_makes_it_live_and_names_the_project(tmp_path):
    trainer = Trainer(COMPANY, default_root_dir=str(tmp_path), wandb_project="mine", wandb_entity="us")
    assert "wandb" in [plugin.name for plugin in trainer.plugins]
    assert "wandb" not in [plugin.name for plugin in Trainer().plugins]
    trainer.fit(Net(), classification_batches(2))
    assert (Offline(trainer.run_dir).run.project, Offline(trainer.run_dir).run.entity) == ("mine", "us")


@pytest.mark.parametrize(("error", "code"), [(ValueError("no"), 1), (KeyboardInterrupt(), 255)])
def test_a_run_that_fails_says_so_and_keeps_its_rows(tmp_path, error, code):
    with pytest.raises(type(error)):
        fit(tmp_path, Net(error))
    offline = Offline(tmp_path / "Net" / "version_0")
    assert [step for step, _ in offline.metric("loss")] == [1, 2, 3]
    assert offline.exit_codes == [code]


def test_a_resumed_run_goes_on_under_its_id(tmp_path):
    options = {"default_root_dir": str(tmp_path), "log_every_n_steps": 1, "wandb_project": "mine"}
    kept = [*COMPANY, "checkpoint"]
    Trainer(kept, run_name="a", max_epochs=1, **options).fit(Net(), classification_batches(2))
    Trainer(kept, run_name="a", max_epochs=2, resume="auto", **options).fit(Net(), classification_batches(2))
    paths = sorted(
        (tmp_path / "a" / "version_0").glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime
    )
    assert len(paths) == 2
    ids = [record.run.run_id for path in paths for record in finished(path) if record.HasField("run")]
    assert len(set(ids)) == 1


def test_one_plugin_in_two_fits_is_two_runs(tmp_path):
    trainer = Trainer([*COMPANY, Wandb()], default_root_dir=str(tmp_path))
    ids = []
    for _ in range(2):
        trainer.fit(Net(), classification_batches(2))
        ids.append(Offline(trainer.run_dir).run.run_id)
    assert ids[0] != ids[1]
