import struct
import sys

import pytest

from lightloop import Plugin, Trainer, hookimpl, option
from lightloop.testing import Probe, probe_batches

BARE = ["-*", "run_dir", "log_every"]


class Logging(Probe):
    hparams = {"lr": 1.0}

    def training_step(self, batch):
        self.log("x", batch)
        return super().training_step(batch)


def events(directory):
    """The events in the one event file in ``directory``: records of length, checksum, event, checksum."""
    (path,) = directory.glob("events.out.tfevents.*")
    return events_in(path)


def events_in(path):
    from tensorboardX.proto.event_pb2 import Event

    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    return found


def shown(directory):
    """What TensorBoard shows of several files: where a run begins anew at a step, what came before and is as late is hidden."""
    kept = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in events_in(path):
            if event.HasField("session_log"):
                kept = [each for each in kept if each[0] < event.step]
            kept += [(event.step, v.tag, v.simple_value) for v in event.summary.value if v.HasField("simple_value")]
    return kept


class EachBatch(Plugin):
    """Writes a row for each batch, several of which have one step; ends the run in batch ``last``."""

    name = "each_batch"
    last: int = option(-1, "The batch in which the run ends.")

    @hookimpl
    def after_batch(self, loop):
        loop.write({"batch": loop.total_batches, "step": loop.global_step})
        if loop.total_batches == self.last:
            raise ZeroDivisionError


@pytest.mark.parametrize("every", [3, 4, 5])
def test_a_resumed_run_shows_each_row_once(tmp_path, every):
    options = {"log_every_n_steps": 0, "accumulate_grad_batches": 4, "save_every": f"{every} batches", "resume": "auto"}

    def run(root, last):
        plugins = [*BARE, "lockstep", "checkpoint", "accumulate", "tensorboard", EachBatch(last=last)]
        trainer = Trainer(plugins, default_root_dir=tmp_path / root, **options)
        try:
            trainer.fit(Logging(), probe_batches(9))
        finally:
            found = shown(trainer.run_dir)
        return found

    with pytest.raises(ZeroDivisionError):
        run("broken", 6)
    broken = run("broken", -1)
    assert broken == run("whole", -1)
    assert len(broken) == 18


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
