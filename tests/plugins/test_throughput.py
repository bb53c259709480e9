import pickle
import time

import pytest

from lightloop import Trainer
from lightloop.testing import Rows, TinyClassifier, classification_batches

BARE = ["-*", "log_every", "throughput", "validation"]


class Slow:
    """Batches that are waited for, each ``seconds``."""

    def __init__(self, batches, seconds):
        self.batches, self.seconds = batches, seconds

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            time.sleep(self.seconds)
            yield batch


def run(train, val=None, module=None, **options):
    rows = Rows()
    trainer = Trainer([*BARE, rows], log_every_n_steps=1, **options)
    trainer.fit(module or TinyClassifier(), train, val)
    pickle.dumps(trainer)
    rates = [
        {name.removeprefix("throughput/"): value for name, value in row.items()} for _, row in rows.of("throughput/")
    ]
    return [each for each in rates if each]


def test_the_rates_belong_together():
    for row in run(classification_batches(10, size=8), accumulate_grad_batches=2, throughput_window=4)[1:]:
        assert row["samples_per_second"] == pytest.approx(8 * row["batches_per_second"])
        assert row["batches_per_second"] == pytest.approx(2 * row["steps_per_second"])
        assert row["seconds_per_step"] == pytest.approx(1 / row["steps_per_second"])
        assert 0 < row["waiting_for_data"] < 1


def test_waiting_for_data_is_told_from_training():
    class Busy(TinyClassifier):
        def training_step(self, batch, batch_idx):
            time.sleep(0.03)
            return super().training_step(batch, batch_idx)

    batches = classification_batches(6)
    waiting = run(Slow(batches, 0.03))[-1]
    busy = run(batches, module=Busy())[-1]
    assert waiting["waiting_for_data"] > 0.5 > busy["waiting_for_data"]


def test_evaluation_is_not_counted():
    class Judged(TinyClassifier):
        def validation_step(self, batch, batch_idx):
            time.sleep(0.2)

    batches = classification_batches(4)
    plain = run(Slow(batches, 0.02), max_epochs=2)[-1]
    judged = run(Slow(batches, 0.02), batches[:1], Judged(), val_check_interval=1, max_epochs=2)[-1]
    assert judged["batches_per_second"] > plain["batches_per_second"] / 3  # counted, it were a tenth


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="throughput_window"):
        Trainer(BARE, throughput_window=0)
