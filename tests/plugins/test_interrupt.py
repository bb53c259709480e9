import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

from lightloop import Plugin, Trainer, hookimpl
from lightloop.testing import Probe, probe_batches

BARE = ["-*", "interrupt"]


def press():
    os.kill(os.getpid(), signal.SIGINT)


class Pressed(Probe):
    """Ctrl-C is pressed in batch 3, ``times`` times."""

    def __init__(self, times=1):
        super().__init__()
        self.times = times

    def training_step(self, batch):
        loss = super().training_step(batch)
        for _ in range(self.times if batch == 3 else 0):
            press()
        return loss


@pytest.fixture(autouse=True)
def restored():
    """SIGINT is handled afterwards as it was before."""
    before = signal.getsignal(signal.SIGINT)
    yield
    now = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert now == before


def test_the_first_ends_the_fit_after_the_batch(capfd):
    module = Pressed()
    trainer = Trainer(BARE, max_epochs=5, min_epochs=5)
    result = trainer.fit(module, probe_batches())
    assert (result.status, result.reason, result.global_step) == ("interrupted", "Ctrl-C", 3)
    assert module.w.item() == -6.0
    assert "training ends after this batch; press it again" in capfd.readouterr().err
    pickle.loads(pickle.dumps(trainer))


def test_a_pass_of_validation_is_finished_first(capfd):
    class PressedInValidation(Probe):
        def validation_step(self, batch, batch_idx):
            self.validated = batch_idx + 1
            if batch_idx == 1:
                press()

    module = PressedInValidation()
    result = Trainer([*BARE, "validation"], max_epochs=5, num_sanity_val_steps=0).fit(
        module, probe_batches(), probe_batches(4)
    )
    assert (result.status, result.epoch, module.validated) == ("interrupted", 1, 4)
    assert "training ends when this pass of evaluation is over; press" in capfd.readouterr().err


def test_everybody_hears_of_it():
    class Hears(Plugin):
        name = "hears"

        def validate(self):
            self.heard = []

        @hookimpl
        def on_interrupt(self, loop):
            self.heard.append(loop.stop_reason)

        @hookimpl
        def after_fit(self, loop):
            self.heard.append(loop.status)

    hears = Hears()
    Trainer([*BARE, hears]).fit(Pressed(), probe_batches())
    assert hears.heard == ["Ctrl-C", "interrupted"]


def test_the_second_raises_at_once():
    module = Pressed(times=2)
    with pytest.raises(KeyboardInterrupt):
        Trainer(BARE).fit(module, probe_batches())
    assert module.w.item() == -3.0


def test_on_request_the_end_raises():
    heard = []

    class Hears(Plugin):
        name, before = "hears", ("interrupt",)

        @hookimpl
        def teardown(self, loop):
            heard.append(loop.status)

    with pytest.raises(KeyboardInterrupt):
        Trainer([*BARE, Hears()], on_interrupt_raise=True).fit(Pressed(), probe_batches())
    assert heard == ["interrupted"]


def test_each_fit_begins_anew():
    trainer = Trainer(BARE)
    for _ in range(2):
        assert trainer.fit(Pressed(), probe_batches()).status == "interrupted"
    assert trainer.fit(Probe(), probe_batches()).status == "finished"


def test_the_handler_is_put_back_after_an_error():
    class Failing(Probe):
        def training_step(self, batch):
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Trainer(BARE).fit(Failing(), probe_batches())


def test_a_handler_of_the_user_is_called_too():
    called = []
    signal.signal(signal.SIGINT, handler := lambda number, frame: called.append(number))
    assert Trainer(BARE).fit(Pressed(), probe_batches()).status == "interrupted"
    assert called == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_where_it_is_ignored_it_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert Trainer(BARE).fit(Pressed(), probe_batches()).status == "finished"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_in_another_thread_it_does_nothing():
    results = []
    thread = threading.Thread(target=lambda: results.append(Trainer(BARE).fit(Probe(), probe_batches())))
    thread.start()
    thread.join()
    assert [result.status for result in results] == ["finished"]


@pytest.mark.processes
def test_a_process_that_is_interrupted_from_outside(tmp_path):
    program = """
import time
from lightloop import Trainer
from lightloop.testing import Probe, probe_batches
class Long(Probe):
    def training_step(self, batch):
        self.log("x", batch)
        print("training", flush=True)
        time.sleep(0.01)
        return super().training_step(batch)
trainer = Trainer(["-*", "run_dir", "log_every", "csv", "interrupt"], log_every_n_steps=1, max_epochs=-1, run_version="it")
print("ended", trainer.fit(Long(), probe_batches()).status, flush=True)
"""
    environment = {**os.environ, "LIGHTLOOP_RUNS": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "training\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output = process.stdout.read().split("\n")
    assert output[-2] == "ended interrupted"
    assert process.returncode == 0
    rows = (tmp_path / "Long" / "it" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + output.count("training") + 1
