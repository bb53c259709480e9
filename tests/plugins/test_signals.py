import atexit
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import pytest

from lightloop import Trainer
from lightloop.testing import probe_batches
from lightloop_plugins._handlers import Terminated
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
    with pytest.raises(Terminated) as ended:
        trainer.fit(module, probe_batches(5))
    assert ended.value.number == getattr(signal, name)
    assert (trainer.loop.status, trainer.loop.stop_reason, len(module.seen)) == ("interrupted", name, 3)
    pickle.loads(pickle.dumps(trainer))


def test_a_second_one_ends_the_process_at_once():
    module = Signalled("SIGTERM", "SIGUSR1")
    with pytest.raises(Terminated) as ended:
        Trainer(BARE).fit(module, probe_batches(5))
    assert ended.value.number == signal.SIGUSR1
    assert len(module.seen) == 2


PROGRAM = """
import atexit, contextlib, os, sys
from lightloop import Trainer
from lightloop.testing import probe_batches
from tests.signalled import Signalled

atexit.register(print, "at exit")
with contextlib.ExitStack() as around:
    around.callback(print, "closed")
    try:
        Trainer(["-*", "signals"]).fit(Signalled("SIGTERM"), probe_batches(5))
    except BaseException as error:
        if sys.argv[1] == "goes on":
            sys.exit(print(type(error).__name__))
        raise
print("never")
"""


@pytest.mark.parametrize(
    ("does", "status", "says"), [("", -signal.SIGTERM, "closed,at exit"), ("goes on", 0, "Terminated,closed,at exit")]
)
def test_the_process_dies_by_the_signal_when_all_around_the_run_is_closed_unless_it_goes_on(does, status, says):
    done = subprocess.run([sys.executable, "-c", PROGRAM, does], capture_output=True, text=True, check=False)
    assert (done.returncode, ",".join(done.stdout.splitlines())) == (status, says), done.stderr
    assert done.stderr == "\nSIGTERM: training ends after this batch\n"


def in_a_process():
    Trainer(BARE).fit(Signalled("SIGTERM"), probe_batches(5))


def test_a_process_of_multiprocessing_says_it_by_its_exit_status():
    process = multiprocessing.get_context("fork").Process(target=in_a_process)
    process.start()
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM


def test_a_signal_that_kills_nobody_ends_the_process_all_the_same():
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        atexit._clear()  # those of the tests
        try:
            Terminated(signal.SIGTERM).die()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGTERM


def test_a_user_who_handles_the_signal_ends_the_process_or_not():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        result = Trainer(BARE).fit(Signalled("SIGTERM"), probe_batches(5))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.status, result.global_step, seen) == ("interrupted", 3, [signal.SIGTERM])


def test_which_signals_is_an_option():
    with pytest.raises(Terminated) as ended:
        Trainer(BARE, end_on_signals=["SIGUSR2"]).fit(Signalled("SIGUSR2"), probe_batches(5))
    assert ended.value.number == signal.SIGUSR2
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        assert Trainer(BARE, end_on_signals=()).fit(Signalled("SIGTERM"), probe_batches(5)).status == "finished"
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(ValueError, match=r"end_on_signals \(signals.names\) must be names of signals"):
        Signals(names=["TERM"])
