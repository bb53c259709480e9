import struct
import sys

import pytest

from lightloop import Trainer
from lightloop.testing import Probe, probe_batches

BARE = ["-*", "run_dir", "log_every"]


class Logging(Probe):
    hparams = {"lr": 1.0}

    def training_step(self, batch):
        self.log("x", batch)
        return super().training_step(batch)


def events(directory):
    """The events in the one event file in ``directory``: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = directory.glob("events.out.tfevents.*")
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    return found


@pytest.mark.parametrize("how", [{"logger": "tensorboard"}, {"plugins": ["tensorboard"]}])
def test_rows_are_scalars(how, tmp_path):
    trainer = Trainer(BARE + how.pop("plugins", []), log_every_n_steps=2, default_root_dir=tmp_path, **how)
    trainer.fit(Logging(), probe_batches(4))
    scalars = [
        (event.step, value.tag, value.simple_value)
        for event in events(trainer.run_dir)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]
    assert [(step, number) for step, tag, number in scalars if tag == "x"] == [(1, 1.0), (2, 2.0), (4, 4.0)]
    assert [
        value.tag for event in events(trainer.run_dir) for value in event.summary.value if value.HasField("tensor")
    ] == ["hparams/text_summary"]


def test_what_was_written_before_an_error_is_on_disk(tmp_path):
    class Failing(Logging):
        def training_step(self, batch):
            if batch == 3:
                raise RuntimeError("batch 3")
            return super().training_step(batch)

    trainer = Trainer([*BARE, "tensorboard"], log_every_n_steps=1, default_root_dir=tmp_path)
    with pytest.raises(RuntimeError, match="batch 3"):
        trainer.fit(Failing(), probe_batches())
    assert [
        event.step for event in events(trainer.run_dir) if event.summary.value and event.summary.value[0].tag == "x"
    ] == [1, 2]


def test_its_writer_takes_more_than_numbers(tmp_path):
    class Talking(Logging):
        def on_train_epoch_end(self):
            trainer.plugin("tensorboard").experiment.add_text("said", "hello", 7)

    trainer = Trainer([*BARE, "tensorboard", "callbacks"], default_root_dir=tmp_path)
    trainer.fit(Talking(), probe_batches(1))
    said = [
        event.step for event in events(trainer.run_dir) for v in event.summary.value if v.tag == "said/text_summary"
    ]
    assert said == [7]
    assert trainer.plugin("tensorboard").experiment is None


def test_without_tensorboardx_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        Trainer([*BARE, "tensorboard"]).fit(Logging(), probe_batches(1))


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="tensorboard_flush_seconds"):
        Trainer([*BARE, "tensorboard"], tensorboard_flush_seconds=0.0)
