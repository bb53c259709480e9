import pickle
import signal

import pytest

from lightloop import Trainer
from lightloop.testing import probe_batches
from lightloop_plugins.signals import Signals
from tests.signalled import Signalled

BARE = ["-*", "signals"]


@pytest.fixture(autouse=True)
def restored():
    """Signals are handled afterwards as they were before."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    assert before == {number: signal.getsignal(number) for number in numbers}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_the_fit_ends_after_the_batch_and_then_the_process(name):
    trainer, module = Trainer(BARE), Signalled(name)
    with pytest.raises(SystemExit) as ended:
        trainer.fit(module, probe_batches(5))
    assert ended.value.code == 128 + getattr(signal, name)
    assert (trainer.loop.status, trainer.loop.stop_reason, len(module.seen)) == ("interrupted", name, 3)
    pickle.loads(pickle.dumps(trainer))


def test_a_second_one_ends_the_process_at_once():
    module = Signalled("SIGTERM", "SIGUSR1")
    with pytest.raises(SystemExit) as ended:
        Trainer(BARE).fit(module, probe_batches(5))
    assert ended.value.code == 128 + signal.SIGUSR1
    assert len(module.seen) == 2


def test_a_user_who_handles_the_signal_ends_the_process_or_not():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        result = Trainer(BARE).fit(Signalled("SIGTERM"), probe_batches(5))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.status, result.global_step, seen) == ("interrupted", 3, [signal.SIGTERM])


def test_which_signals_is_an_option():
    with pytest.raises(SystemExit) as ended:
        Trainer(BARE, end_on_signals=["SIGUSR2"]).fit(Signalled("SIGUSR2"), probe_batches(5))
    assert ended.value.code == 128 + signal.SIGUSR2
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        assert Trainer(BARE, end_on_signals=()).fit(Signalled("SIGTERM"), probe_batches(5)).status == "finished"
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(ValueError, match=r"end_on_signals \(signals.names\) must be names of signals"):
        Signals(names=["TERM"])
